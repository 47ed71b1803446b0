"""What stands between this host and Chromium inside its namespaces; run by path there, it imports nothing of ours.

It starts the browser with its two pipes, makes sockets that listen on the loopback of this network namespace (which
has no other interface) and hands them out, gives downloads' bytes, and ends with its control socket: when the owner
is gone, however that happened, the first process of this process namespace ends, and everything here with it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

CONTROL, COMMANDS, ANSWERS = 10, 11, 12
LONGEST = 1 << 16


def listening() -> socket.socket:
    """A socket that listens on a free port of the loopback here."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    made.listen(128)
    return made


def content(path: str, most: int) -> bytes | None:
    """A download's bytes, and the file removed; None for what is larger than allowed, or no plain file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            found = file.read(most + 1)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            os.remove(path)
    return found if len(found) <= most else None


def serve(control: socket.socket) -> None:
    """Answer one request after the other until the owner is gone."""
    while said := control.recv(LONGEST):
        asked = json.loads(said)
        if asked["do"] == "listen":
            with listening() as made:
                port = made.getsockname()[1]
                socket.send_fds(control, [json.dumps({"port": port}).encode()], [made.fileno()])
        elif asked["do"] == "read":
            found = content(asked["path"], asked["most"])
            control.send(json.dumps({"size": -1 if found is None else len(found)}).encode())
            for at in range(0, len(found or b""), LONGEST):
                control.send((found or b"")[at : at + LONGEST])


def main(argv: list[str]) -> None:
    """Start the browser and serve; whatever happens, everything here ends afterwards."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of the browser end up here
    os.dup2(COMMANDS, 3)
    os.dup2(ANSWERS, 4)
    os.set_inheritable(CONTROL, False)
    os.closerange(COMMANDS, ANSWERS + 1)
    control = socket.socket(fileno=CONTROL)
    null = subprocess.DEVNULL
    subprocess.Popen(argv, stdin=null, stdout=null, pass_fds=(3, 4))
    os.close(3)
    os.close(4)
    with contextlib.suppress(OSError):
        serve(control)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
