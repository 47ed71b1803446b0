import json

import numpy as np
import pytest
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.full import MOST_UNDO
from envgym_environments.code_repair.memo import Memo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.env import Env, Step, observation_digest
from envgym.messages import Action
from envgym.testing.check_env import check_env

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]


async def call(env: Env, name: str, **arguments: str | int) -> Step:
    return await env.step(Action.call(name, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["compact", "full"])
def test_it_meets_the_environment_contract(tools: str, broken, in_backend) -> None:
    async def body(backend) -> None:
        memo = Memo()
        await check_env(lambda: CodeRepair(broken, backend, tools=tools, memo=memo), turns=5)

    in_backend(body)


@pytest.mark.slow
def test_the_full_tools_repair_the_package(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        assert (await env.reset(seed=0)).text == "2 tests of small fail."
        assert "small.py" in (await call(env, "list_files")).text.split("\n")
        found = await call(env, "search", pattern="-= value")
        assert found.text == "small.py:9:        result -= value"
        assert "    9         result -= value" in (await call(env, "view", path="small.py", start=8, end=10)).text
        failing = await call(env, "run_tests")
        assert failing.text.endswith("6 passed, 2 failed")
        broken_key = failing.state_key
        assert (await call(env, "edit", path="small.py", old="value", new="x")).text.startswith("`old` occurs")
        done = await call(env, "edit", path="small.py", old="-= value", new="+= value")
        assert done.text == "edited small.py at line 9"
        assert done.state_key != broken_key
        assert (await call(env, "undo")).state_key == broken_key
        assert (await call(env, "undo")).text == "nothing to undo"
        await call(env, "shell", command="sed -i 's/-= value/+= value/' small.py && touch junk.txt")
        assert (await call(env, "run_tests")).text == "8 passed, 0 failed"
        end = await call(env, "submit")
        assert (end.reward, end.channels["tests_run"]) == (1.0, 2.0)
        assert end.submission is not None
        assert "junk" not in end.submission
        await env.close()

    in_backend(body)


def test_changed_tests_earn_nothing(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=0)
        await call(env, "shell", command="sed -i 's/assert total.*/assert True/' tests/test_small.py")
        assert (await call(env, "run_tests")).text == "8 passed, 0 failed"
        end = await call(env, "submit")
        assert (end.reward, end.submission) == (0.0, "")
        await env.close()

    in_backend(body)


def test_a_submission_that_is_too_large_is_malformed(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend, submission_bytes=3000)
        await env.reset(seed=0)
        await call(env, "edit", path="small.py", old="-= value", new="+= value")
        fits = await env.submission()
        assert "+        result += value" in fits
        await call(env, "shell", command="head -c 200000 /dev/zero | tr '\\0' 1 > tests/large.txt")
        assert await env.submission() == fits, "what does not count is in no submission"
        await call(env, "shell", command="seq 5000 >> small.py")
        end = await call(env, "submit")
        assert end.submission is not None
        assert "at most 3000" in end.submission
        assert len(end.submission) < 200
        assert (end.reward, end.channels["malformed"]) == (0.0, 1.0)
        await env.close()
        with pytest.raises(ValueError, match="submission_bytes is 0"):
            CodeRepair(broken, backend, submission_bytes=0)

    in_backend(body)


def test_the_state_key_ignores_byte_code_and_caches_and_sees_source_and_failures(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        start = (await env.reset(seed=0)).state_key
        junk = "mkdir -p __pycache__ .pytest_cache && touch __pycache__/a.pyc .pytest_cache/b"
        assert (await call(env, "shell", command=junk)).state_key == start
        changed = (await call(env, "shell", command="echo '# note' >> small.py")).state_key
        assert changed != start
        back = await call(env, "shell", command="sed -i '$d' small.py")
        assert back.state_key == start
        await env.close()

    in_backend(body)


def test_answers_are_bounded_and_a_long_one_keeps_head_and_tail(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=0)
        step = await call(env, "shell", command="echo first; yes filler | head -100000; echo last")
        assert len(step.text) < 7000
        assert step.text.startswith("exit 0\nfirst")
        assert "cut" in step.text
        assert "last" in step.text[-40:]
        await env.close()

    in_backend(body)


def test_answers_leave_out_what_the_world_cannot_repeat(broken, in_backend) -> None:
    async def body(backend) -> None:
        env, answers = CodeRepair(broken, backend), []
        for _ in range(2):
            await env.reset(seed=0)
            step = await call(
                env, "shell", command="ls -l; mktemp -d; python3 -c 'print(object())'; date -Is; time true"
            )
            answers.append(step.text)
        assert answers[0] == answers[1]
        assert "<date>" in answers[0]
        assert "0x..." in answers[0]
        await env.close()

    in_backend(body)


def test_a_second_reset_leaks_nothing(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=0)
        await call(env, "shell", command="rm -rf tests small.py; export X=1; cd /; touch /tmp/leak")
        await env.reset(seed=0)
        seen = await call(env, "shell", command='ls; pwd; echo "[$X]"; ls /tmp')
        assert seen.text.split("\n") == ["exit 0", "small.py", "tests", "/repo", "[]"]
        assert (await call(env, "undo")).text.startswith("undone; 0 more")
        await env.close()

    in_backend(body)


@pytest.mark.slow
def test_undo_goes_back_as_far_as_it_says_and_says_where_it_ends(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=0)
        before = {one.id for one in await backend.snapshots()}
        for number in range(MOST_UNDO + 2):
            await call(env, "shell", command=f"echo {number} > count.py")
        kept = await env.durable_snapshot()
        again = await env.durable_snapshot()
        assert again.state == kept.state, "a state is made durable once"
        env, first = CodeRepair(broken, backend), env
        await env.reset(seed=0, start=kept)
        for left in reversed(range(MOST_UNDO)):
            assert (await call(env, "undo")).text == f"undone; {left} more can be undone"
        assert (await call(env, "shell", command="cat count.py")).text == "exit 0\n1"
        assert (await call(env, "undo")).text == "undone; 0 more can be undone"
        assert (
            await call(env, "undo")
        ).text == "no older state is kept: the last 32 edits and commands can be undone"
        await env.release(kept)
        await env.release(again)
        anew = await first.durable_snapshot()
        assert anew.state != kept.state, "what nobody holds any more is made again"
        await first.release(anew)
        await first.close()
        await env.close()
        assert {one.id for one in await backend.snapshots()} == before, "the episode itself holds no durable state"

    in_backend(body)


CALLS = st.sampled_from(
    [
        ("shell", {"command": "rm -rf tests small.py; touch junk.txt; ls"}),
        ("shell", {"command": "export X=$((X + 1)); cd tests; echo $X; pwd"}),
        ("shell", {"command": "touch /tmp/leak; sed -i 's/-= value/+= value/' small.py; git status; ls /tmp"}),
        ("edit", {"path": "small.py", "old": "-= value", "new": "+= value"}),
        ("view", {"path": "small.py"}),
        ("list_files", {}),
        ("run_tests", {}),
        ("undo", {}),
        ("submit", {}),
    ]
)


@pytest.mark.slow
@settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
@given(first=st.lists(CALLS, max_size=5), second=st.lists(CALLS, min_size=1, max_size=4))
def test_l_an_episode_is_the_same_after_any_other(first, second, broken, in_backend) -> None:
    async def played(env: CodeRepair, calls) -> list[tuple]:
        steps = [await env.reset(seed=3)]
        for name, arguments in calls:
            if steps[-1].stop is None:
                steps.append(await call(env, name, **arguments))
        return [(step.text, step.reward, step.stop, step.state_key) for step in steps]

    async def body(backend) -> None:
        memo = Memo()
        used, fresh = (CodeRepair(broken, backend, memo=memo) for _ in range(2))
        await played(used, first)
        assert await played(used, second) == await played(fresh, second)
        for env in (used, fresh):
            await env.close()

    in_backend(body)


@pytest.mark.slow
def test_a_snapshot_outlives_its_environment_and_refuses_other_tools(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=5)
        await call(env, "edit", path="small.py", old="-= value", new="+= value")
        kept = await env.snapshot()
        await env.close()
        other = CodeRepair(broken, backend)
        step = await other.reset(seed=0, start=kept)
        assert step.text == "edited small.py at line 9"
        assert (await call(other, "undo")).text.startswith("undone")
        await other.reset(seed=0, start=kept)
        assert (await call(other, "submit")).reward == 1.0
        compact = CodeRepair(broken, backend, tools="compact")
        with pytest.raises(ValueError, match="'full' tools"):
            await compact.reset(seed=0, start=kept)
        await other.release(kept)
        await other.close()

    in_backend(body)


def test_wrong_settings_are_refused_at_once(broken, in_backend) -> None:
    async def body(backend) -> None:
        with pytest.raises(ValueError, match="must be 'full' or 'compact'"):
            CodeRepair(broken, backend, tools="tiny")
        with pytest.raises(ValueError, match="test_budget is -1"):
            CodeRepair(broken, backend, test_budget=-1)
        with pytest.raises(ValueError, match="fail_to_pass"):
            CodeRepair(broken.model_copy(update={"metadata": {}}), backend)

    in_backend(body)


EDITS = ("-= value=>+= value", "start=0=>start=1", "low > high=>low >= high", "nothing=>of the kind")
MOVES = st.one_of(
    st.sampled_from(EDITS).map(lambda text: ("edit", text)),
    st.sampled_from(["echo $N; N=x$N", "cd tests", "pwd", "rm -f small.py", "mkdir -p d && mv small.py d"]).map(
        lambda text: ("shell", text)
    ),
    st.just(("undo", "")),
    st.just(("view", "small.py")),
)


async def move(env: Env, kind: str, text: str) -> Step:
    if kind == "edit":
        old, _, new = text.partition("=>")
        return await call(env, "edit", path="small.py", old=old, new=new)
    arguments = {"shell": {"command": text}, "view": {"path": text}}.get(kind, {})
    return await call(env, kind, **arguments)


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MOVES, max_size=4), st.lists(MOVES, max_size=3), st.lists(MOVES, min_size=1, max_size=3))
def test_law_j_and_k_a_fork_has_the_future_of_its_parent_and_disturbs_nobody(
    broken, in_backend, before, disturbing, after
) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend)
        await env.reset(seed=0)
        for one in before:
            await move(env, *one)
        quiet, disturbed = await env.fork(), await env.fork()
        for one in disturbing:
            await move(disturbed, *one)
        futures = [[observation_digest(await move(branch, *one)) for one in after] for branch in (env, quiet)]
        assert futures[0] == futures[1]
        for branch in (env, quiet, disturbed):
            await branch.close()

    in_backend(body)


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(0, 8))
def test_laws_j_and_k_hold_with_the_compact_tools(broken, in_backend, tmp_path, seed: int, turns: int) -> None:
    async def body(backend) -> None:
        rng = np.random.default_rng(seed)
        env = CodeRepair(broken, backend, tools="compact", memo=Memo(tmp_path / "memo.jsonl"))

        def choose(step: Step) -> Action:
            calls = [one for one in step.legal or () if one != "submit"] or ["submit"]
            return Action.say(calls[int(rng.integers(len(calls)))])

        step = await env.reset(seed=0)
        for _ in range(turns):
            step = await env.step(choose(step))
        quiet, disturbed = await env.fork(), await env.fork()
        other = step
        for _ in range(3):
            other = await disturbed.step(choose(other))
        actions, future = [], []
        for _ in range(4):
            actions.append(choose(step))
            step = await env.step(actions[-1])
            future.append(observation_digest(step))
        assert [observation_digest(await quiet.step(action)) for action in actions] == future

    in_backend(body)


def test_a_compact_snapshot_is_plain_data(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend, tools="compact")
        await env.reset(seed=0)
        await env.step(Action.say("localise"))
        kept = await env.snapshot()
        assert kept.sandbox is None
        assert json.loads(kept.state)["state"]["localised"] is True

    in_backend(body)
