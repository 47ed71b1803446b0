import ast
import hashlib

import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.measured.calls import Calls, cost_of
from envgym_environments.code_repair.kinds.measured.drawing import drawn_calls, grows, shape_of
from envgym_environments.code_repair.kinds.slowing import SLOWING, slowdowns
from envgym_environments.code_repair.kinds.speed import defined, share_of
from envgym_environments.code_repair.operators import apply
from hypothesis import given
from hypothesis import strategies as st

from envgym.task import World

pytestmark = pytest.mark.timeout(300)

MODULE = '''
import functools

_KNOWN = {}


@functools.lru_cache(maxsize=None)
def squares(most):
    if most in _KNOWN:
        return _KNOWN[most]
    return tuple([one * one for one in range(most)])


def distinct(words, top=3):
    """Each word once."""
    seen = set()
    kept = []
    order = sorted(words)
    found = False
    rows = {word: at for at, word in enumerate(words)}
    for word in words:
        if word not in seen:
            seen.add(word)
            kept.append(word)
        if rows.get(word) == 0 and order[0] == kept[0]:
            found = True
            break
    for word in words:
        kept.append((word, word in rows, len(order)))
    return kept, found, any(word for word in words), max(words), squares(top)
'''


def test_every_inefficiency_leaves_what_a_function_gives() -> None:
    found = slowdowns(MODULE)
    assert {one.operator for one in found} == {one.name for one in SLOWING}

    def given_by(text: str) -> object:
        space: dict[str, object] = {}
        exec(compile(ast.parse(text), "module", "exec"), space)
        return space["distinct"](["b", "a", "b", "c"])  # type: ignore[operator]

    right = given_by(MODULE)
    for one in found:
        slow = apply(MODULE, one)
        assert slow != MODULE
        assert given_by(slow) == right, one


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-50, 50) | st.floats(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN, st.integers(1, 60), st.text(max_size=4))
def test_drawn_arguments_are_of_the_seen_kind_and_grow_and_follow_the_seed(value, size, seed) -> None:
    shape = shape_of(value)
    if shape is None:
        return
    calls = [{"args": [shape], "kwargs": {"x": shape}}]
    drawn = drawn_calls(calls, size, 2, seed)
    assert drawn == drawn_calls(calls, size, 2, seed)
    for (one,), named in drawn:
        assert type(one) is type(value)
        assert type(named["x"]) is type(value)
        if grows(shape) and not isinstance(value, dict):  # of a dictionary's keys some are drawn twice
            assert size - size // 4 <= len(one) <= size


def test_what_is_no_plain_data_has_no_shape() -> None:
    assert shape_of(object()) is None
    assert shape_of([[[[1]]]]) is None
    assert shape_of([print, lambda: 1]) is None
    assert shape_of(len) == {"is": "builtin", "name": "len"}
    assert not grows({"is": "list", "of": [], "most": 0})


def test_the_way_from_slow_to_fast_is_measured_by_factors() -> None:
    assert share_of(8.0, 8.0, 2.0) == 0.0
    assert share_of(8.0, 4.0, 2.0) == pytest.approx(0.5)
    assert share_of(8.0, 2.0, 2.0) == 1.0
    assert share_of(8.0, 16.0, 2.0) < 0.0
    assert share_of(2.0, 1.0, 2.0) == 0.0, "where the answer is not faster, nothing is"
    assert share_of(2.0, 0.0, 1.0) == 0.0


def test_of_several_definitions_the_one_that_runs_is_meant() -> None:
    source = "@overload\ndef f(x: int) -> int: ...\n\n\ndef f(x):\n    return x\n"
    assert defined(source, "f").lineno == 5


HIDING = """
import os, signal, sys, threading, time


def child(n):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        pid = os.fork()
    except OSError:
        return "refused"
    os._exit(0) if pid == 0 else None


def spin(n):
    until = time.process_time() + n / 10
    while time.process_time() < until:
        pass
    return n


def thread(n):
    one = threading.Thread(target=spin, args=(n,))
    one.start()
    one.join()
    return n


def silent(n):
    os._exit(0)


def killing(n):
    os.kill(os.getppid(), signal.SIGKILL)


def say(*event):
    frame = sys._getframe()
    while "say" not in frame.f_globals or frame.f_globals["say"] is say:
        frame = frame.f_back
    frame.f_globals["say"](*event)


def huge(n):
    say("outcomes", ["0" * 32], 10**4000, 0, 0)
    os._exit(0)


def talking(n):
    for _ in range(300_000):
        say("outcomes", [])
    return n


def lying(n):
    frame = sys._getframe()
    while "say" not in frame.f_globals:
        frame = frame.f_back
    frame.f_globals["say"]("outcomes", ["0" * 32], 0, 0, 0)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_measured_process_hides_no_work_and_what_it_says_is_data(in_backend) -> None:
    async def body(backend) -> None:
        world = World(files={"/repo/hiding.py": HIDING}, workdir="/repo")

        async def cost(function: str, *, count: bool = False):
            async with await backend.create(world) as sandbox:
                return await cost_of(sandbox, Calls("hiding", function, ".", [([3], {})]), count=count)

        refused, spun, threaded = await cost("child"), await cost("spin"), await cost("thread")
        assert refused.outcomes == (hashlib.blake2b(b"gave 'refused'", digest_size=16).hexdigest(),)
        assert spun.outcomes == threaded.outcomes != refused.outcomes
        assert spun.cpu_s >= 0.3
        assert threaded.cpu_s >= 0.3, "threads are the process's own"
        for name in ("silent", "killing", "huge", "talking"):
            assert (await cost(name)).outcomes == (), name
        assert (await cost("lying")).outcomes == ("0" * 32,), "it is compared with what the answer gives"
        assert (await cost("child", count=True)).steps > 0
        assert (await cost("missing")).outcomes == ()

    in_backend(body)


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_slow_function_is_made_fast_and_the_tests_alone_are_worth_nothing(
    made_of_shelf, keeps_the_contract, in_backend
) -> None:
    async def body(backend) -> None:
        tasks, _ = await made_of_shelf(backend, "speed")
        await keeps_the_contract(backend, tasks)
        task = tasks[0]
        assert task.metadata["ratio"] >= 3.0
        async with await backend.create(task.world) as sandbox:
            for command in ("python3 workload.py 5", "python3 workload.py"):
                done = await sandbox.exec(command, timeout_s=120)
                assert done.exit_code == 0, done.stderr
                assert b" s for 4 calls" in done.stdout
        path = task.metadata["place"]["path"]
        grader = CodeRepairGrader(backend)
        gold = (await grader.grade(task, task.metadata["gold"]["patch"])).channels
        assert gold["gain"] >= 0.5
        assert gold["speedup"] > 1.5
        first = task.world.files[f"/repo/{path}"].split("\n")[0]
        comment = f"--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,2 @@\n {first}\n+# faster\n"
        same = (await grader.grade(task, comment)).channels
        assert (same["tests_pass"], same["same"], same["reward"], same["p2p"]) == (1.0, 1.0, 0.0, 0.0)

    in_backend(body)
