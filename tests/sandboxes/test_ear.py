"""Questions of a filter: taken at once, answered later, and from then on no signal's matter."""

import subprocess
import sys

import pytest
from envgym_sandboxes import ear, landlock

ASK = """
import os, queue, signal, socket, sys, time
from envgym_sandboxes import ear, outward, syscalls
from envgym_sandboxes.gate import Gate
from envgym_sandboxes.room import Room

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asker = os.fork()
if asker == 0:
    got = []
    signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    rules = outward.Rules(network=True, scoped=True, truncates=True, counted=True)
    listener = outward.install(outward.asking(syscalls.ARCH, rules), listens=True)
    socket.send_fds(theirs, [b"l"], [listener])
    os.close(listener)
    try:
        child = os.fork()
    except OSError as error:
        os._exit(error.errno)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os._exit(0 if got else 100)

_data, (listener, *_), _flags, _address = socket.recv_fds(ours, 1, 1)
theirs.close()
heard, bell = queue.Queue(), os.eventfd(0)
ear.listen(listener, heard.put, bell)
gate = Gate(listener, "/", Room(None))
notice, asked = heard.get(), 1
os.kill(asker, signal.SIGUSR1)
time.sleep(0.05)
while notice is not None:
    gate.answer(notice)
    notice, asked = heard.get(), asked + 1
_pid, status = os.waitpid(asker, 0)
print(os.waitstatus_to_exitcode(status), asked, os.eventfd_read(bell))
"""


def test_a_fork_whose_question_was_taken_is_not_ended_by_a_signal():
    """Nor is the signal lost: the kernel delivers it, and then makes the call anew, which is asked for anew."""
    if landlock.absence() or not ear.hears():
        pytest.skip(landlock.absence() or "this kernel lets signals end such a wait")
    result = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=20, check=False)
    assert (result.stdout, result.stderr) == ("0 3 3\n", ""), "asked twice, and then there was nobody who could ask"


def test_the_version_of_a_kernel_is_read_whatever_follows_it():
    assert all(map(ear.hears, ("6.12", "6.12+", "6.12-rc1", "6.18.44-fc-v769", "7.0.1")))
    assert not any(map(ear.hears, ("6.11.9", "6.6.87.2-microsoft-standard-WSL2", "5.15.0-13-amd64", "4.4.0", "")))
