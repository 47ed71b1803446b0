"""Tasks at the edge of competence: who is drawn, that it is a function of the seed, and that it helps."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from envgym_agents.learn.config import Curriculum, Reinforce, load  # noqa: E402
from envgym_agents.learn.curriculum import EdgeOrder  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.resolve import resolve  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.staleness import staleness_of  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402

from envgym.env import Step, StopReason  # noqa: E402
from envgym.episode import Episode, Group, Turn  # noqa: E402
from envgym.errors import Failure, InfrastructureFailure  # noqa: E402
from envgym.limits import Limits  # noqa: E402
from envgym.messages import Action, Message  # noqa: E402
from envgym.policy import Reply  # noqa: E402
from envgym.registry import EnvSpec, register, spec, unregister  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.task import Task, TaskSet  # noqa: E402

EDGE = Curriculum(kind="solve-rate")


def tasks(count: int) -> list[Task]:
    return [Task(id=f"t{index}", prompt="") for index in range(count)]


def outcome(task: str, rewards, failed: int = 0) -> Group:
    lost = Failure.of(InfrastructureFailure("gone"), where="step", turn=0)
    members = []
    for n, reward in enumerate(rewards):
        turn = Turn.of("agent", Reply(Action.say("x")), Step(reward=float(reward)))
        members.append(Episode(f"{n}", task, root=Step(), turns=(turn,), seed=0, stop=StopReason.GOAL))
    members += [Episode(f"f{n}", task, root=Step(), turns=(), seed=0, failure=lost) for n in range(failed)]
    return Group(task, tuple(members))


def test_tasks_are_drawn_by_how_often_they_fail_where_that_is_asked_for():
    """After 8 tries each: p = (0 + 1) / 10, (4 + 1) / 10, (8 + 1) / 10, so 1 - p is 0.9, 0.5, 0.1 of 1.5."""
    order = EdgeOrder(tasks(3), 0, Curriculum(kind="failures", sharpness=1, explore=0, memory=1))
    order.saw([outcome(f"t{n}", [1] * solved + [0] * (8 - solved)) for n, solved in enumerate((0, 4, 8))])
    assert order.rates.tolist() == pytest.approx([0.1, 0.5, 0.9])
    drawn = [order.draw(1)[0].id for _ in range(3000)]
    shares = [drawn.count(f"t{n}") / 3000 for n in range(3)]
    assert shares == pytest.approx([0.6, 1 / 3, 1 / 15], abs=0.03)


@pytest.mark.parametrize("kind", ["solve-rate", "failures"])
def test_however_sharply_tasks_are_chosen_one_is_drawn(kind):
    """0.36 and 0.19 to the power 2,000 are both 0 in floating point; the one is still likelier than the other."""
    order = EdgeOrder(tasks(2), 0, Curriculum(kind=kind, sharpness=2000, explore=0, memory=1))
    order.saw([outcome("t0", [1] * 8), outcome("t1", [1] * 18)])  # rates of 9 / 10 and 19 / 20
    assert {order.draw(1)[0].id for _ in range(20)} == {"t0"}
    assert [task.id for task in order.draw(2)] == ["t0", "t1"]


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), count=st.integers(1, 12), cut=st.integers(0, 5))
def test_draws_are_a_function_of_the_seed_and_of_what_was_seen_and_go_on_from_a_state(seed, count, cut):
    def drawn(steps, order):
        found = []
        for step in steps:
            wave = order.draw(4)
            order.saw([outcome(task.id, np.random.default_rng([seed, step]).integers(0, 2, 4)) for task in wave])
            found.append([task.id for task in wave])
        return found

    whole = drawn(range(6), EdgeOrder(tasks(count), seed, EDGE))
    order = EdgeOrder(tasks(count), seed, EDGE)
    begun = drawn(range(cut), order)
    again = EdgeOrder(tasks(count), seed, EDGE, cursor=order.cursor)
    again.load(json.loads(json.dumps(order.state())))
    assert begun + drawn(range(cut, 6), again) == whole
    assert all(len(set(wave)) == min(4, count) for wave in whole)


def test_the_rate_is_a_decayed_share_of_successes_and_failed_worlds_count_nothing():
    order = EdgeOrder(tasks(2), 0, Curriculum(kind="solve-rate", memory=0.5))
    assert order.rates.tolist() == [0.5, 0.5]
    order.saw([outcome("t0", [1, 1, 1, 0], failed=3)])
    assert order.rates[0] == pytest.approx(4 / 6)
    order.saw([outcome("t0", [0, 0, 0, 0])])
    assert order.rates[0] == pytest.approx((1.5 + 1) / (2 + 4 + 2))


def test_what_is_always_or_never_solved_is_drawn_less_and_what_was_never_drawn_is_found():
    """Of 40 tasks 4 are solved half of the time; a tenth of the draws would be theirs."""
    order, rng = EdgeOrder(tasks(40), 0, EDGE), np.random.default_rng(0)
    chances = {f"t{n}": 0.5 if n < 4 else float(n % 2) for n in range(40)}
    late = []
    for step in range(120):
        wave = order.draw(4)
        order.saw([outcome(task.id, rng.random(8) < chances[task.id]) for task in wave])
        late += [task.id for task in wave] if step >= 60 else []
    assert np.mean([chances[name] == 0.5 for name in late]) > 0.25
    assert len(order.state()) == 40


def test_a_curriculum_is_of_whole_steps_and_idle_settings_are_refused():
    assert staleness_of(Reinforce(loop={"curriculum": EDGE})) == 0
    with pytest.raises(ValueError, match=r"explore 0.5 has no use where kind is 'none'"):
        Curriculum(explore=0.5)


class Panels:
    """One turn; the panel that is named opens the vault. Most tasks are always won, or never."""

    tools = ()

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Step:
        self.panel = "ab"[int(np.random.default_rng(seed).integers(2))]
        return Step((Message(role="user", content=f"panel {self.panel}"),), legal=("act:press-a", "act:press-b"))

    async def step(self, action: Action) -> Step:
        kind = self.task.metadata["kind"]
        won = kind == "sure" or (kind == "edge" and action.text == f"act:press-{self.panel}")
        return Step((Message(role="user", content="nothing"),), reward=float(won), stop=StopReason.SUBMITTED)

    async def close(self) -> None:
        pass


def panels() -> TaskSet:
    kinds = ["edge"] * 4 + ["sure"] * 14 + ["never"] * 14
    return TaskSet([Task(id=f"p{n}", prompt="", metadata={"kind": kind}) for n, kind in enumerate(kinds)])


@pytest.mark.slow
def test_a_run_learns_more_at_the_edge_of_competence_and_resumes_to_the_same_weights(
    model_factory, word_agents, word_policy, word_ids, tmp_path
):
    register("environments", "test-panels", EnvSpec(name="test-panels", tasks=panels, make=Panels, in_process=True))

    def trained(kind: str, folder: str, die_at: int | None = None):
        config = Reinforce(
            steps=32,
            tasks=4,
            group=6,
            oversample=1,
            lr=3e-5,
            checkpoint_every=5,
            loop={"staleness": 0, "curriculum": {"kind": kind}},
        )
        model = model_factory(seed=1)
        policy, seen = word_policy(model), []

        async def on_step(progress, found, values):
            seen.append(values)
            if progress.step == die_at:
                raise KeyboardInterrupt

        order = TaskOrder(panels(), 0) if kind == "none" else EdgeOrder(panels(), 0, config.loop.curriculum)
        arena = Arena(env="test-panels", rollout=Rollout(limits=Limits(turns=2)), concurrency=24)
        learner = Learner(Scorer(model), adamw(model, lr=config.lr, weight_decay=0.0))
        parts = Parts(learner, policy, word_agents(policy), arena, order, config, 0, tmp_path / folder, on_step)
        asyncio.run(Loop(parts).run())
        return model.state_dict(), seen

    def sure(weights) -> float:
        """How likely the model of these weights presses the panel that it is shown, at the least."""
        model = model_factory()
        model.load_state_dict(weights)
        with torch.no_grad():
            seen = torch.tensor([[word_ids["panel"], word_ids[panel]] for panel in "ab"])
            logits = model(seen).logits[:, -1, [word_ids["act:press-a"], word_ids["act:press-b"]]]
        return float(logits.softmax(-1).diagonal().mean())

    try:
        passes, plain = trained("none", "plain")
        weights, edge = trained("solve-rate", "edge")
        taught = [np.mean([1 - one["zero_variance"] for one in seen]) for seen in (plain, edge)]
        assert taught[1] > 1.6 * taught[0]  # the share of groups that differ
        assert sure(weights) > sure(passes)
        assert edge[-1]["tasks_seen"] == 32
        with pytest.raises(KeyboardInterrupt):
            trained("solve-rate", "killed", die_at=13)
        again, _ = trained("solve-rate", "killed")
        assert all(torch.equal(weights[name], again[name]) for name in weights)
    finally:
        unregister("environments", "test-panels")


def test_tasks_are_a_number_or_those_of_a_file(tmp_path):
    names = [task.id for task in spec("guess").tasks(count=30).split("train")]
    listed = tmp_path / "tasks.txt"
    listed.write_text(f"{names[5]}\n\n{names[2]}\n")

    def chosen(tasks):
        over = [
            "env=guess",
            "expert=brute-force",
            "task_options.count=30",
            "evaluate.baselines=[]",
            f"tasks={tasks}",
        ]
        return [task.id for task in resolve(load(overrides=over), []).train_tasks]

    assert chosen("none") == names
    assert len(chosen(7)) == 7
    assert chosen(f"'{listed}'") == [names[2], names[5]]
    listed.write_text("guess/no-such\n")
    with pytest.raises(ValueError, match="'guess/no-such' is no task of split 'train'"):
        chosen(f"'{listed}'")
    with pytest.raises(ValueError, match="it cannot be read"):
        chosen("'nowhere.txt'")
