"""Why a Docker engine cannot be used from here, and the command that changes it: facts, then causes. No SDK."""

import os
import shutil
import socket
from dataclasses import dataclass

from envgym_sandboxes.diagnosis.causes import Cause
from envgym_sandboxes.diagnosis.facts import user_name

__all__ = ["EngineFacts", "look_at_engine", "why_no_engine"]

_UNIX = "unix://"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's address as one user meets it.

    there: whether its socket exists. denied: whether this user may not use it. answers: whether something listens.
    installed: whether there is a program that would. systemd: whether services are systemd's. root: this user is.
    """

    address: str = "unix:///var/run/docker.sock"
    there: bool = True
    denied: bool = False
    answers: bool = True
    installed: bool = True
    systemd: bool = True
    root: bool = True
    user: str = "user"


def look_at_engine(address: str) -> EngineFacts:
    """Look at an engine's address, without asking it anything."""
    path = address.removeprefix(_UNIX)
    denied = answers = False
    if address.startswith(_UNIX):
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
            answers = True
        except PermissionError:
            denied = True
        except OSError:
            answers = False
    return EngineFacts(
        address=address,
        there=os.path.exists(path),
        denied=denied,
        answers=answers,
        installed=shutil.which("dockerd") is not None,
        systemd=os.path.isdir("/run/systemd/system"),
        root=os.geteuid() == 0,
        user=user_name(),
    )


def why_no_engine(facts: EngineFacts, *, copying: bool = False) -> list[Cause]:
    """Why the docker backend cannot use the engine; empty when nothing is known to be wrong.

    copying: the docker-copy backend, which needs neither root nor an engine of this host.
    """
    if not facts.address.startswith(_UNIX):
        return (
            []
            if copying
            else [
                Cause(
                    f"the engine at {facts.address} is another host's",
                    "unset DOCKER_HOST, or use the remote backend",
                )
            ]
        )
    start = "sudo systemctl start docker" if facts.systemd else "sudo dockerd &"
    if not facts.there and not facts.installed:
        return [Cause("no Docker engine is installed", f"sudo apt-get install docker.io && {start}")]
    if facts.denied:
        fix = f"sudo usermod -aG docker {facts.user}, then log in again (who may use an engine is root on its host)"
        return [Cause(f"{facts.user} may not use the engine at {facts.address}", fix)]
    if not facts.answers:
        return [Cause(f"no engine answers at {facts.address}", f"{start}, or set DOCKER_HOST to one that runs")]
    if not facts.root and not copying:
        told = f"{facts.user} is not root, who alone may mount overlays into containers"
        return [Cause(told, "run as root; or use the namespace or landlock backend, which need no root")]
    return []
