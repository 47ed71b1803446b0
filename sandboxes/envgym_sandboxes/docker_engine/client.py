"""The engine, seen from here: its calls in threads, bounded in number, with its faults as this project's own.

Everything that is made is named and labelled before it is made, so that `reap` finds it after a kill -9, what was
only created and never started included. It knows containers and images by what the engine says of them, not what
runs in them.
"""

import asyncio
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from envgym.errors import InfrastructureFailure, SandboxUnavailable
from envgym_sandboxes.images.rootfs import content_digest
from envgym_sandboxes.images.store import Image
from envgym_sandboxes.state import is_dead

__all__ = ["OWNER", "Client", "Facts", "labels"]

OWNER, _HOST = "envgym.owner", "envgym.host"
_DIGEST = "envgym.digest"
_PATIENCE_S = 120
T = TypeVar("T")


def _boot() -> str:
    """This host since it was started: an engine may serve several, and process ids mean nothing on another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def labels(owner: str) -> dict[str, str]:
    """What marks a container as one owner's on this host. owner: of `state.new_name`."""
    return {OWNER: owner, _HOST: _boot()}


@dataclass(frozen=True, slots=True)
class Facts:
    """What matters of an engine. mapped: whether it maps its containers' users to others of the host.

    reads_files: whether it reads a filter of system calls from a file, as podman does, instead of being sent it.
    """

    version: str
    runtimes: tuple[str, ...]
    local: bool
    rootless: bool
    mapped: bool
    reads_files: bool


class Client:
    """Calls to one engine. address: None takes ``$DOCKER_HOST``, or the standard socket."""

    def __init__(self, address: str | None, *, most_at_once: int) -> None:
        self.address = address or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self._local = threading.local()
        self._made: list[Any] = []
        self._threads = ThreadPoolExecutor(most_at_once, thread_name_prefix="envgym-docker")
        self._closed = False
        self._importing: dict[str, asyncio.Task[str]] = {}

    async def call(self, function: Callable[..., T], *given: Any) -> T:
        """Run one of the methods below in a thread. Raises InfrastructureFailure after `close`."""
        if self._closed:
            raise InfrastructureFailure(f"{function.__name__}: the calls to the engine at {self.address} are over")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *given)

    def close(self) -> None:
        """Let the threads end."""
        self._closed = True
        self._threads.shutdown()
        while self._made:
            self._made.pop().close()

    def _api(self) -> Any:
        """The SDK's client of this thread. Raises SandboxUnavailable."""
        with self._faults("reaching the engine"):
            if self.address.startswith("unix://"):  # where none listens the SDK leaves its own open
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(self.address.removeprefix("unix://"))
            if not hasattr(self._local, "api"):
                self._local.api = docker.APIClient(base_url=self.address, version="auto", timeout=_PATIENCE_S)
                self._made.append(self._local.api)
        return self._local.api

    @contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        try:
            yield
        except APIError as error:
            raise InfrastructureFailure(
                f"{what}: the engine at {self.address} says: {error.explanation}"
            ) from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise SandboxUnavailable(f"{what}: {self._advice(error)}") from error

    def _advice(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return (
                f"this user may not use the engine at {self.address}; join its group (sudo usermod -aG docker "
                "$USER, then log in again), or set DOCKER_HOST to a rootless engine"
            )
        return (
            f"no engine answers at {self.address} ({str(error)[-200:]}); start one (systemctl start docker, or for "
            "this checkout: scripts/dockerd.sh start), or set DOCKER_HOST to one that runs"
        )

    # -- facts -------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """Ask the engine about itself. Raises SandboxUnavailable."""
        api = self._api()
        with self._faults("asking the engine about itself"):
            info = api.info()
            parts = api.version().get("Components") or ()
        options = {option.partition("=")[2].partition(",")[0] for option in info.get("SecurityOptions") or ()}
        return Facts(
            version=str(info.get("ServerVersion", "?")),
            runtimes=tuple(sorted(info.get("Runtimes") or {})),
            local=self.address.startswith("unix://"),
            rootless="rootless" in options,
            mapped="userns" in options,
            reads_files=any("podman" in str(one.get("Name", "")).lower() for one in parts),
        )

    # -- images ------------------------------------------------------------------------------------------------

    async def image(self, image: Image, extra: Path | None = None, inside: str = "") -> str:
        """The engine's id of an image, imported if it does not have it.

        extra: a folder that is added to it as `inside`.
        """
        key = f"{image.root}\0{extra}"
        if key not in self._importing:
            self._importing[key] = asyncio.create_task(self.call(self._import, image, extra, inside))
        try:
            return await asyncio.shield(self._importing[key])
        except Exception:
            self._importing.pop(key, None)
            raise

    def _import(self, image: Image, extra: Path | None, inside: str) -> str:
        digest = image.digest or content_digest(image.root)[0]
        mark = f"{digest}+{extra.name}" if extra else digest
        api = self._api()
        with self._faults(f"looking for image {image.name}"):
            found = api.images(filters={"label": f"{_DIGEST}={mark}"})
        if found:
            return str(found[0]["Id"])
        name = f"envgym/{'agent-' if extra else ''}{digest.partition(':')[2][:12]}"
        return self.make_image(
            f"{name}:latest", image, {inside: extra} if extra else {}, [f"LABEL {_DIGEST}={mark}"]
        )

    def make_image(self, name: str, image: Image, trees: Mapping[str, Path], changes: list[str]) -> str:
        """The engine's id of a new image called `name`: another one's files, with some directories exchanged.

        trees: paths inside -> what is there instead. changes: instructions as of a Dockerfile.
        """
        api = self._api()
        repository, _, tag = name.partition(":")
        reading, writing = os.pipe()
        packer = threading.Thread(target=_pack, args=(writing, image.root, trees))
        packer.start()
        with self._faults(f"importing image {image.name} as {name}"), open(reading, "rb") as stream:
            api.import_image_from_stream(stream, repository=repository, tag=tag, changes=changes)
            packer.join()
            return str(api.inspect_image(name)["Id"])

    # -- containers --------------------------------------------------------------------------------------------

    def create(
        self, name: str, image: str, command: list[str], settings: dict[str, Any], host: dict[str, Any]
    ) -> str:
        """Create a container and return its id.

        settings, host: of the SDK's own calls. Names with a capital letter in `host` are the engine's own, for what
        the SDK has no word for.
        """
        api = self._api()
        with self._faults(f"creating container {name}"):
            known = {key: value for key, value in host.items() if key[0].islower()}
            config = api.create_host_config(**known) | {key: host[key] for key in host.keys() - known.keys()}
            made = api.create_container(image=image, command=command, name=name, host_config=config, **settings)
        return str(made["Id"])

    def attach(self, name: str) -> Any:
        """The streams of a container that was not started yet, as something like a socket, with its response.

        A client of its own, since what the SDK keeps for others would be closed with it.
        """
        self._api()
        with self._faults(f"attaching to container {name}"):
            api = docker.APIClient(base_url=self.address, version="auto", timeout=_PATIENCE_S)
            line = api.attach_socket(name, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            bare = getattr(line, "_sock", line)
            bare.settimeout(None)
            return api, line, bare

    def start(self, name: str) -> int:
        """Start a container; the pid of its first process on the engine's host, 0 if it has ended already."""
        api = self._api()
        with self._faults(f"starting container {name}"):
            api.start(name)
            return int(api.inspect_container(name)["State"]["Pid"])

    def ended(self, name: str) -> str:
        """Why a container does not run: its state, and the end of what it wrote."""
        api = self._api()
        try:
            with self._faults(f"looking at container {name}"):
                state = api.inspect_container(name)["State"]
                told = api.logs(name, tail=20).decode("utf-8", "replace")[-1000:]
        except (InfrastructureFailure, SandboxUnavailable) as error:
            return str(error)
        memory = ", out of memory" if state.get("OOMKilled") else ""
        said = f"{state.get('Status')} with status {state.get('ExitCode')}{memory} {state.get('Error', '')} {told}"
        return said.strip()

    def remove(self, name: str) -> None:
        """Kill and remove a container; one that is gone is fine."""
        api = self._api()
        with self._faults(f"removing container {name}"):
            try:
                api.remove_container(name, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != requests.codes.conflict:  # somebody else is removing it
                    raise

    def reap(self) -> list[str]:
        """Remove the containers of owners of this host that are dead; a line for each."""
        api = self._api()
        removed = []
        with self._faults("listing containers"):
            found = api.containers(all=True, filters={"label": [OWNER, f"{_HOST}={_boot()}"]})
        for container in found:
            if is_dead(container["Labels"][OWNER]):
                self.remove(container["Id"])
                removed.append(f"container {container['Names'][0].lstrip('/')}")
        return removed


def _pack(fd: int, root: str, trees: Mapping[str, Path]) -> None:
    """Write a root file system as a tar; whoever reads it may be gone before its end."""
    inside = {path.lstrip("/"): tree for path, tree in trees.items()}

    def kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = info.name.removeprefix("./")
        return None if any(f"{name}/".startswith(f"{path}/") for path in inside) else owned(info)

    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if os.geteuid() != 0:
            info.uid = info.gid = 0  # who unpacked it is nobody in there
        info.uname = info.gname = ""
        return info

    try:
        with open(fd, "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
            archive.add(root, ".", filter=kept)
            for path, tree in inside.items():
                archive.add(tree, path, filter=owned)
    except BrokenPipeError:
        return  # the engine refused it, and says why
