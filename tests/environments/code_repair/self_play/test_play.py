"""Self-play on a small real package: consistent and inconsistent bugs, what both sides earn, and the contract."""

import json

import pytest
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.recheck import certified_again
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.self_play.agents import ScriptedPlayer
from envgym_environments.code_repair.self_play.env import SelfPlay
from envgym_environments.code_repair.self_play.harvest import harvest

from envgym.credit.ledger import Ledger
from envgym.env import StopReason
from envgym.episode import Group
from envgym.jobs import Job, run_episode
from envgym.limits import Limits
from envgym.messages import Action
from envgym.rollout import Rollout
from envgym.task import Task, TaskSet
from envgym.testing.check_env import check_env

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(1200)]

TESTS = "tests/test_small.py"
PASSING = ("test_total", "test_total_from_a_start", "test_clamp[5-3]", "test_clamp[-5-0]", "test_clamp[2-2]",
           "test_clamp_refuses", "test_last", "test_unrelated")  # fmt: skip


@pytest.fixture
def repository(broken, tmp_path) -> Task:
    """The package of `broken`, unbroken."""
    tree = tmp_path / "broken"
    code = (tree / "small.py").read_text()
    (tree / "small.py").write_text(code.replace("result -= value", "result += value"))
    (tree / "other.py").write_text("")
    return Task(
        id="self-play/small",
        prompt="small",
        world=package_world(tree),
        metadata={
            "package": "small",
            "layout": Layout(package="small.py", tests=(TESTS,)).model_dump(mode="json"),
            "passing": [f"{TESTS}::{name}" for name in PASSING],
            "tests": len(PASSING),
            "suite_s": 0.1,
        },
    )


BREAK = Action.call("edit", path="small.py", old="result += value", new="result -= value")
HIDE = Action.call("shell", command=f"sed -i 's/def test_total/def once_total/' {TESTS}")
SUBMIT = Action.call("submit")
REPAIR = Action.call("edit", path="small.py", old="result -= value", new="result += value")
CHEAT = Action.call("shell", command=f"rm {TESTS}")


async def played(env, *actions, seed=0):
    steps = [await env.reset(seed=seed)]
    for action in actions:
        steps.append(await env.step(action))
    return steps


def test_a_consistent_bug_is_played_to_its_end_and_both_sides_are_paid(repository, in_backend) -> None:
    async def body(backend) -> None:
        env = SelfPlay(repository, backend, attempts=2, rules={"higher_order": False})
        steps = await played(env, BREAK, HIDE, SUBMIT, REPAIR, SUBMIT, CHEAT, SUBMIT, Action.say("done"))
        actors = [step.next_actor for step in steps]
        assert actors == ["injector"] * 3 + ["solver-1"] * 2 + ["solver-2"] * 2 + ["injector"] * 2
        told = steps[3]
        assert told.text.startswith("You play the solver.")
        assert "+def test_total(" in told.text
        assert "result" not in told.text, "the specification says nothing of the code"
        assert (steps[5].reward, steps[7].reward) == (1.0, -1.0)
        end = steps[-1]
        assert (end.stop, end.reward) == (StopReason.SUBMITTED, pytest.approx(1 - 1.8 * 0.5))
        assert end.channels["solve_rate"] == 0.5
        kept = json.loads(end.submission)
        assert kept["failing"] == [f"{TESTS}::test_total", f"{TESTS}::test_total_from_a_start"]
        assert [step.reward for step in steps[:5]] == [None] * 5
        await env.close()

    in_backend(body)


@pytest.mark.slow
def test_a_solver_sees_neither_the_original_code_nor_the_injectors_sandbox(repository, in_backend) -> None:
    async def body(backend) -> None:
        env = SelfPlay(repository, backend, attempts=1)
        left = Action.call("shell", command="echo the answer > /tmp/answer; echo the answer > answer.txt")
        look = Action.call("shell", command="cat /tmp/answer answer.txt; grep -c 'result += value' small.py")
        steps = await played(env, left, BREAK, HIDE, SUBMIT, look)
        assert "the answer" not in steps[-1].text
        assert steps[-1].text.startswith("exit 1\n0\n")
        await env.close()

    in_backend(body)


WRONG = {
    "bug_scope": (HIDE, SUBMIT),
    "bug_validity": (Action.call("edit", path="small.py", old="return 1 + 1", new="return 3"), HIDE, SUBMIT),
    "test_weakening": (BREAK, Action.call("submit", test_files=TESTS)),
    "test_files": (BREAK, HIDE, Action.call("submit", test_files="tests/none.py")),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", WRONG)
def test_an_inconsistent_bug_costs_its_injector_one_and_nobody_has_to_repair_it(check, repository, in_backend):
    async def body(backend) -> None:
        env = SelfPlay(repository, backend)
        *_, end = await played(env, *WRONG[check])
        assert end.text.startswith(f"not consistent ({check})")
        assert (end.reward, end.stop, end.channels["consistent"]) == (-1.0, StopReason.SUBMITTED, 0.0)
        assert end.channels[f"check/{check}"] == 0.0
        await env.close()

    in_backend(body)


@pytest.mark.slow
def test_a_failed_repair_becomes_a_bug_of_second_order(repository, in_backend) -> None:
    async def body(backend) -> None:
        env = SelfPlay(repository, backend, attempts=1)
        worse = Action.call("edit", path="small.py", old="result -= value", new="result *= value")
        steps = await played(env, BREAK, HIDE, SUBMIT, worse, SUBMIT)
        again = steps[-1]
        assert (again.reward, again.next_actor) == (-1.0, "solver-2")
        assert "An earlier repair has failed" in again.text
        seen = await env.step(Action.call("search", pattern="result .= value"))
        assert "result *= value" in seen.text
        await env.step(Action.call("edit", path="small.py", old="result *= value", new="result += value"))
        mended = await env.step(SUBMIT)
        assert (mended.reward, mended.next_actor) == (1.0, "injector")
        end = await env.step(Action.say("thanks"))
        assert end.channels["solve_rate"] == 0.0, "attempts at the second bug are not the first one's"
        assert (end.reward, end.channels["second_order_solved"]) == (-0.8, 1.0)
        await env.close()

    in_backend(body)


@pytest.mark.slow
def test_who_plays_too_long_has_handed_in_what_is_there(repository, in_backend) -> None:
    async def body(backend) -> None:
        env = SelfPlay(repository, backend, attempts=1, turns=2)
        steps = await played(env, BREAK, HIDE, REPAIR, Action.call("view", path="small.py"))
        assert [step.next_actor for step in steps] == ["injector", "injector", "solver-1", "solver-1", "injector"]
        assert steps[-1].reward == 1.0
        await env.close()

    in_backend(body)


@pytest.mark.slow
def test_it_meets_the_environment_contract(repository, in_backend) -> None:
    plan = (BREAK, HIDE, SUBMIT, REPAIR, SUBMIT, Action.say("done"))

    def follow(step, tools, rng):
        if "You play the injector. The repository" in step.text:
            return BREAK
        if step.text.startswith("edited") and step.next_actor == "injector":
            return HIDE
        if step.text.startswith("exit") and step.next_actor == "injector":
            return SUBMIT
        if step.text.startswith("You play the solver"):
            return REPAIR if rng.random() < 0.5 else Action.call("list_files")
        return plan[-1] if "Answer anything" in step.text else SUBMIT

    async def body(backend) -> None:
        make = lambda: SelfPlay(repository, backend, attempts=1)  # noqa: E731
        report = await check_env(make, turns=7, policy=follow, deadline_s=120, uses_seed=True, seeds=(0, 1))
        assert not report.unreached

    in_backend(body)


@pytest.mark.slow
def test_scripted_players_play_and_each_actor_is_credited_with_its_own_rewards(repository, in_backend) -> None:
    async def body(backend) -> None:
        async def make():
            return SelfPlay(repository, backend, attempts=3, rules={"higher_order": False})

        job = Job(make, lambda env: ScriptedPlayer(4, skill=0.6), repository.id, 4, "e", Rollout(Limits(turns=400)))
        episode = await run_episode(job)
        assert episode.failure is None, episode.failure
        assert episode.stop is StopReason.SUBMITTED
        assert episode.turns[-1].step.channels["consistent"] == 1.0
        ledger = Ledger.of([Group(repository.id, (episode,))])
        earned = {
            episode.turns[numbers[0]].actor: float(ledger.reward_N[begin:end].sum())
            for (_, numbers), begin, end in zip(ledger.parts, ledger.turns, ledger.turns[1:], strict=False)
        }
        rate = episode.turns[-1].step.channels["solve_rate"]
        assert earned["injector"] == episode.turns[-1].step.reward
        assert sum(earned[f"solver-{n}"] == 1.0 for n in (1, 2, 3)) == round(3 * rate)
        tasks, left = harvest([episode, episode], TaskSet([repository]))
        assert dict(left) == {"the same bug again": 1}
        (task,) = tasks
        assert (task.metadata["solve_rate"], task.metadata["attempts"]) == (rate, 3)
        grader = CodeRepairGrader(backend)
        assert (await grader.grade(task, "")).reward == 0.0
        assert (await grader.grade(task, str(task.metadata["gold"]["patch"]))).reward == 1.0
        certified = await certified_again(task, backend)
        assert not isinstance(certified, str), certified
        assert certificate_of(certified) is not None

    in_backend(body)


def test_no_task_without_passing_tests_is_taken_for_a_repository(broken, in_backend) -> None:
    async def body(backend) -> None:
        with pytest.raises(ValueError, match="no 'passing' tests"):
            SelfPlay(broken, backend)

    in_backend(body)
