"""Carries out a recipe with mmdebstrap: packages from the machine's own Debian mirror, no container registry.

The result depends on the recipe and on the mirror's packages; that it is what the recipe promises is checked by
digest. It writes nothing outside of the store.
"""

import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

from envgym.errors import InfrastructureFailure, SandboxUnavailable
from envgym_sandboxes.images.recipes import Recipe, recipes
from envgym_sandboxes.images.store import Image, OtherDigest, Store

__all__ = ["build"]

_AGENT = "agent:x:1000:1000::/home/agent:/bin/bash"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_MIRRORS = (
    "deb http://deb.debian.org/debian {suite} main",
    "deb http://deb.debian.org/debian {suite}-updates main",
    "deb http://deb.debian.org/debian-security {suite}-security main",
)
_LONGEST_S = 1800


def build(name: str, store: Store, *, accept: bool = False, again: bool = False) -> Image:
    """The image of a recipe, built if it is not there yet (or `again`).

    accept: take it under the digest it has, where the mirror's packages are no longer those of the recipe;
    otherwise that raises InfrastructureFailure. Raises ValueError for a name without recipe, SandboxUnavailable
    where this machine cannot build.
    """
    known = recipes()
    if name not in known:
        raise ValueError(f"there is no recipe {name!r} in containers/images.toml; known: {', '.join(known)}")
    with store.lock(name):
        if not again and name in store.names():
            return store.find(name)
        with store.scratch() as place:
            tar = place / "rootfs.tar"
            _run(_command(known[name], tar), known[name], place)
            expected = None if accept else known[name].digest
            try:
                with tarfile.open(tar, "r|") as layer:
                    return store.add([layer], source=f"recipe {name}", name=name, expected=expected)
            except OtherDigest as found:
                raise InfrastructureFailure(
                    f"image {name!r} was built with {found}, and containers/images.toml demands {expected}: this "
                    f"mirror's packages are others. `envgym images build {name} --accept` takes it as it is; tasks "
                    "may then behave otherwise than where they were made"
                ) from found


def _command(recipe: Recipe, target: Path) -> list[str]:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise SandboxUnavailable("building images needs mmdebstrap (Debian: apt-get install mmdebstrap)")
    command = [program, "--quiet", "--variant=minbase", "--format=tar"]
    command += [f"--mode={'root' if os.geteuid() == 0 else 'unshare'}", f"--include={','.join(recipe.packages)}"]
    command += [f"--dpkgopt=path-exclude={path}" for path in recipe.leave_out]
    command += ['--aptopt=Apt::Install-Recommends "false"', '--aptopt=Acquire::Check-Valid-Until "false"']
    # Everything inside runs as this user; without the entry, programs that ask for its name fail.
    command += [f'--customize-hook=echo "{_AGENT}" >>"$1/etc/passwd"']
    command += ['--customize-hook=echo "agent:x:1000:" >>"$1/etc/group"']
    command += ['--customize-hook=echo envgym >"$1/etc/hostname"']
    command += ['--customize-hook=printf "127.0.0.1 localhost envgym\\n::1 localhost\\n" >"$1/etc/hosts"']
    return [*command, recipe.suite, str(target), *_mirrors(recipe.suite)]


def _mirrors(suite: str) -> list[str]:
    """The machine's own sources where they are of this suite, so that its mirror or snapshot is used."""
    if _SOURCES.is_file() and f"{suite}-security" in _SOURCES.read_text():
        return [str(_SOURCES)]
    return [line.format(suite=suite) for line in _MIRRORS]


def _apart(command: list[str]) -> list[str]:
    """The same, where root's mounts are seen by nobody else and end with it, as all its processes do.

    mmdebstrap binds the machine's own /dev/shm into the tree that it makes. Killed, it leaves that there, and who
    then removes the tree empties /dev/shm.
    """
    if os.geteuid() != 0:
        return command  # mmdebstrap itself is in namespaces then
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


def _run(command: list[str], recipe: Recipe, place: Path) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(place)}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment |= {"SOURCE_DATE_EPOCH": str(recipe.epoch), "HOME": str(place)}
    builder = subprocess.Popen(
        _apart(command), env=environment, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with builder:
        try:
            said = builder.communicate(timeout=_LONGEST_S)[1]
        except BaseException:  # none of its processes mounts anything in the place that is then removed
            os.killpg(builder.pid, signal.SIGKILL)
            raise
    if builder.returncode:
        raise InfrastructureFailure(f"mmdebstrap ended with status {builder.returncode}: {said[-2000:]}")
