"""How a `World` becomes layers: image, masks, trees, files. Pure: it computes steps, `jobs.fill` carries them out.

The host as an image is an allow list: programs, libraries and configuration of the host can be read, everything
else (homes, /run, /tmp, other people's data, secrets in /etc and /var) does not exist inside.
"""

import os
import posixpath
import sys
from collections.abc import Mapping
from typing import Any

from envgym.task import Tree, World

__all__ = ["check_world", "default_env", "files_steps", "host_steps", "image_root", "prefix_binds", "rootfs_steps"]

Step = dict[str, Any]
HOME = "/home/agent"
_SHOWN = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "nix", "var")
_EMPTY = ("boot", "dev", "home", "media", "mnt", "proc", "root", "run", "srv", "sys")
_SECRET_FILES = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/krb5.keytab",
    "/etc/pip.conf",
    "/etc/netrc",
    "/etc/environment",
)
_SECRET_DIRECTORIES = (
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers.d",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/NetworkManager",
    "/etc/wireguard",
    "/var/log",
    "/var/spool",
    "/var/mail",
    "/var/backups",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/kubelet",
    "/var/lib/cloud",
)
_PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\n"
    f"agent:x:1000:1000::{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
_GROUP = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"


def default_env(world: World) -> dict[str, str]:
    """The environment of every command: fixed, so that two hosts give the same observations."""
    search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if world.image == "host":
        search = f"{sys.prefix}/bin:{search}"
    env = {"PATH": search, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash"}
    env |= {"LANG": "C.UTF-8", "TERM": "dumb", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return env | world.env


def check_world(world: World) -> None:
    """Raise ValueError for what no sandbox could be made of."""
    for what, path in [("workdir", world.workdir), *(("files", path) for path in world.files)]:
        _check_path(what, path)
    for tree in world.trees:
        _check_path("trees target", tree.target)
        if not os.path.isdir(tree.source):
            raise ValueError(f"World.trees: source {tree.source!r} is not a directory of this host")
    for name, value in world.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"World.env: {name!r} cannot be the name of a variable, or its value holds a NUL")


def _check_path(what: str, path: str) -> None:
    if not path.startswith("/") or "\0" in path or posixpath.normpath(path) != path:
        raise ValueError(f"World.{what}: {path!r} must be an absolute path without '.', '..' or doubled slashes")


def image_root(world: World, images: Mapping[str, str]) -> str:
    """The host directory of the world's image. Raises ValueError for a name that is not known."""
    path = "/" if world.image == "host" else images.get(world.image, world.image)
    if not path.startswith("/"):
        known = ", ".join(sorted(images)) or "none"
        raise ValueError(f"World.image {world.image!r} is neither 'host', a path, nor a known name (known: {known})")
    if not os.path.isdir(path):
        raise ValueError(f"World.image {world.image!r}: {path} is not a directory")
    return path


def prefix_binds() -> list[str]:
    """The interpreter's directories that the host image would hide; they are shown read-only at their own path."""
    root = os.stat("/").st_dev
    binds = [f"/{name}" for name in ("usr", "opt", "nix", "lib", "lib64", "bin", "sbin") if _is_mount(f"/{name}", root)]
    for prefix in (sys.base_prefix, sys.prefix):
        path = os.path.realpath(prefix)
        top = path.split("/")[1]
        shown = top in _SHOWN and top != "var" and os.stat(path).st_dev == root
        if not shown and not any(path == bind or path.startswith(bind + "/") for bind in binds):
            binds.append(path)
    return binds


def _is_mount(path: str, root: int) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and os.stat(path).st_dev != root


def host_steps(binds: list[str], network: bool) -> list[Step]:
    """The layer that hides the host's private parts."""
    needed = {bind.split("/")[1] for bind in binds}
    steps: list[Step] = []
    for name in sorted({*os.listdir("/"), *_EMPTY}):
        if name in _EMPTY or (name in needed and name not in _SHOWN):
            steps.append({"do": "directory", "path": f"/{name}", "opaque": True, "own": False})
        elif name not in _SHOWN and name != "tmp":
            steps.append({"do": "whiteout", "path": f"/{name}"})
    for path in _SECRET_FILES:
        if os.path.lexists(path):
            steps.append({"do": "whiteout", "path": path})
    for path in _SECRET_DIRECTORIES:
        if os.path.isdir(path) and not os.path.islink(path):
            steps.append({"do": "directory", "path": path, "opaque": True, "own": False})
    for path in ("/tmp", "/var/tmp"):
        steps.append({"do": "directory", "path": path, "opaque": True, "mode": 0o1777, "own": False})
    for path, content in (("/etc/passwd", _PASSWD), ("/etc/group", _GROUP), ("/etc/hostname", "envgym\n")):
        steps.append({"do": "file", "path": path, "content": content, "mode": 0o644, "own": False})
    if network:
        with open("/etc/resolv.conf") as file:
            content = file.read()
        steps.append({"do": "file", "path": "/etc/resolv.conf", "content": content, "mode": 0o644, "own": False})
    else:
        hosts = "127.0.0.1 localhost envgym\n::1 localhost\n"
        steps.append({"do": "file", "path": "/etc/hosts", "content": hosts, "mode": 0o644, "own": False})
    steps.append({"do": "directory", "path": HOME})
    steps += [{"do": "directory", "path": bind, "own": False} for bind in binds]
    return steps


def rootfs_steps() -> list[Step]:
    """What any root file system needs to be one of ours."""
    steps: list[Step] = [{"do": "directory", "path": path, "own": False} for path in ("/proc", "/dev")]
    steps.append({"do": "directory", "path": "/tmp", "mode": 0o1777, "own": False})
    return [*steps, {"do": "directory", "path": HOME}]


def tree_steps(tree: Tree, host: bool) -> list[Step]:
    """One tree as a layer. Over the host it stands alone; over a root file system it is merged with what is there."""
    return [{"do": "tree", "source": tree.source, "path": tree.target, "opaque": host and tree.target != "/"}]


def files_steps(world: World, binds: list[str]) -> list[Step]:
    """The top layer of a world: its workdir, its files, and the places where something is mounted."""
    inside_tree = any(f"{world.workdir}/".startswith(f"{tree.target.rstrip('/')}/") for tree in world.trees)
    opaque = world.image == "host" and not inside_tree and world.workdir not in ("/", "/tmp", HOME)
    steps: list[Step] = [{"do": "directory", "path": world.workdir, "opaque": opaque}] if world.workdir != "/" else []
    steps += [{"do": "directory", "path": bind, "own": False} for bind in binds if _covered(bind, world)]
    for path, content in sorted(world.files.items()):
        steps.append({"do": "file", "path": path, "content": content, "mode": 0o644})
    return steps


def _covered(path: str, world: World) -> bool:
    tops = [world.workdir, *(tree.target for tree in world.trees)]
    return any(path.startswith(top.rstrip("/") + "/") for top in tops)
