"""`route` whose models are agents: they are asked, they are paid by their tokens, and the reward knows of it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envgym_environments.tool import route

from envgym.env import Env, Step, StopReason
from envgym.episode import SPENT, Episode
from envgym.errors import Misconfigured
from envgym.jobs import Job, run_episode, stream
from envgym.messages import Action, Message, ToolCall
from envgym.policy import Reply
from envgym.registry import make
from envgym.rollout import Rollout
from envgym.task import Task
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent, ScriptedPolicy

ACTORS: dict[str, Any] = {
    "Heron": {"shown": 100, "sampled": 1000, "says": "good at sums"},
    "Wren": {"call": 0.002},
}
TASK = route.route_tasks(3, questions="maths", difficulty=1)[1]
TRUTH = str(TASK.metadata["answer"])


def ask(name: str, question: str, call: str = "") -> Action:
    made = ToolCall(name="ask_model", arguments={"name": name, "question": question}, id=call)
    return Action(message=Message(role="assistant", tool_calls=(made,)))


def played(script: list[Action], actors: Any = ACTORS, **others: ScriptedAgent) -> Episode:
    async def make_env() -> Env:
        return make(route.SPEC, TASK, actors=actors)

    given = {name: lambda env, one=one: one for name, one in others.items()}
    job = Job(make_env, lambda env: ScriptedAgent(script), TASK.id, 0, "e", Rollout(), others=given)
    return asyncio.run(run_episode(job))


def heron(words: str = TRUTH, tokens: int = 3) -> ScriptedAgent:
    return ScriptedAgent([words] * 9, policy=ScriptedPolicy(tokens=tokens))


def test_a_model_hears_the_question_alone_and_is_paid_by_the_tokens_that_it_read_and_wrote() -> None:
    end = Action.call("answer", value=TRUTH)
    episode = played([ask("Heron", "And?", "c7"), ask("Heron", "Again?"), end], Heron=heron())
    assert episode.failure is None, episode.failure
    assert [turn.actor for turn in episode.turns] == ["agent", "Heron", "agent", "Heron", "agent"]
    assert episode.turns[0].step.observation == (Message(role="user", content="And?"),)
    told = Message(role="tool", content=f"Heron says: {TRUTH}", tool_call_id="c7")
    assert episode.turns[1].step.observation == (told,), "the answer to the call is the model's"
    first, second = (episode.turns[at].step for at in (1, 3))
    assert first.cost == {"prompt_tokens": 4.0, "completion_tokens": 3.0, "priced_usd": pytest.approx(0.0034)}
    assert second.cost["prompt_tokens"] == 11.0, "it reads what was said before, too"
    assert first.info[SPENT] == {"prompt_tokens": 4.0, "completion_tokens": 3.0}
    usd = (4 + 11) * 100e-6 + 6 * 1000e-6
    last = episode.turns[-1].step
    assert last.stop is StopReason.GOAL
    assert last.channels == {
        "reward": pytest.approx(1 - 0.5 * usd / 0.01), "right": 1.0, "usd": pytest.approx(usd), "tokens": 6.0,
    }  # fmt: skip


def test_more_tokens_for_the_same_answer_earn_less_and_a_wrong_answer_nothing() -> None:
    script = [ask("Heron", "And?"), Action.call("answer", value=TRUTH)]
    rewards = [played(script, Heron=heron(tokens=tokens)).reward or 0.0 for tokens in (1, 4, 8)]
    assert 1 > rewards[0] > rewards[1] > rewards[2] > 0.5
    assert played([ask("Heron", "And?"), Action.call("answer", value="no")], Heron=heron()).reward == 0.0


def test_a_price_by_the_call_needs_no_tokens_and_one_by_tokens_fails_where_none_are_told() -> None:
    script = [ask("Wren", "And?"), Action.call("answer", value=TRUTH)]
    episode = played(script, Wren=ScriptedAgent([TRUTH]))
    assert episode.turns[1].step.cost == {"priced_usd": 0.002}
    assert episode.reward == pytest.approx(0.9)
    with pytest.raises(Misconfigured, match=r"'Heron' has a price by token.*no prompt_tokens.*actors\.Heron\.call"):
        played([ask("Heron", "And?")], {"Heron": {"shown": 103}}, Heron=ScriptedAgent([TRUTH]))
    with pytest.raises(ValueError, match=r"asks for actor 'Heron'.*--actor Heron=AGENT"):
        played([ask("Heron", "And?")])  # nobody was named


@pytest.mark.parametrize("isolate", ["", "process"])
def test_a_price_that_nobody_can_pay_ends_the_run_and_one_answer_that_tells_nothing_fails_alone(
    isolate,
) -> None:
    """The first is the set-up's fault, of every episode; a server that forgets once is the world's."""
    made = {"asked": 0}

    async def make_env() -> Env:
        prices = {"Heron": {"shown": 102, "sampled": 1002}}  # the process remembers which models have reported
        return make(route.SPEC, TASK, actors=prices, **({"isolate": isolate} if isolate else {}))

    def job(number: int, other: Any) -> Job:
        asks = [ask("Heron", "And?"), ask("Heron", "Again?"), Action.call("answer", value=TRUTH)]
        return Job(make_env, lambda env: ScriptedAgent(asks), TASK.id, number, str(number), Rollout(),
                   others={"Heron": lambda env: other()})  # fmt: skip

    class Forgetful(ScriptedAgent):
        """A server's usage comes with the first answer and not with the second."""

        async def act(self, step: Step) -> Reply:
            made["asked"] += 1
            spent = {"prompt_tokens": 4.0, "completion_tokens": 3.0} if made["asked"] == 1 else {}
            return replace(await super().act(step), cost=spent)

    async def ended(jobs: list[Job]) -> list[Episode]:
        return [episode async for episode in stream(jobs, concurrency=1)]

    with pytest.raises(Misconfigured, match="reports no prompt_tokens"):
        asyncio.run(ended([job(number, lambda: ScriptedAgent([TRUTH])) for number in range(3)]))
    (episode,) = asyncio.run(ended([job(7, lambda: Forgetful([TRUTH] * 2))]))
    assert episode.failure is not None
    assert (episode.failure.kind, episode.reward) == ("EnvironmentFailure", None), "no free answer"
    assert "reports no prompt_tokens" in episode.failure.message


def test_one_hiccup_at_the_beginning_of_an_episode_fails_it_alone_where_the_model_has_reported_in_another() -> None:
    reports = iter([True, False, True])
    asks = [ask("Heron", "And?"), Action.call("answer", value=TRUTH)]

    class Server(ScriptedAgent):
        """A server that leaves out its usage once."""

        async def act(self, step: Step) -> Reply:
            spent = {"prompt_tokens": 4.0, "completion_tokens": 3.0} if next(reports) else {}
            return replace(await super().act(step), cost=spent)

    async def make_env() -> Env:
        return make(route.SPEC, TASK, actors={"Heron": {"shown": 101, "sampled": 1001}})

    def job(number: int) -> Job:
        return Job(make_env, lambda env: ScriptedAgent(list(asks)), TASK.id, number, str(number), Rollout(),
                   others={"Heron": lambda env: Server([TRUTH])})  # fmt: skip

    async def ended() -> list[Episode]:
        return [episode async for episode in stream(map(job, range(3)), concurrency=1)]

    kinds = [episode.failure and episode.failure.kind for episode in asyncio.run(ended())]
    assert kinds == [None, "EnvironmentFailure", None]


def test_asking_is_the_only_call_of_a_message_and_mistakes_give_nobody_the_word() -> None:
    two = Action(message=Message(role="assistant", tool_calls=(*ask("Heron", "a").calls, *ask("Wren", "b").calls)))
    steps = asyncio.run(_steps([two, ask("Condor", "And?"), ask("Heron", " ")]))
    assert [step.next_actor for step in steps] == ["agent"] * 4
    assert [message.content for message in steps[1].observation] == [
        "error: ask_model must be the only call of a message; nothing was done"
    ] * 2
    assert "no model 'Condor'; the models are: Heron, Wren" in steps[2].text
    assert steps[3].text == "error: the question is empty"


async def _steps(actions: list[Action]) -> list[Step]:
    env = make(route.SPEC, TASK, actors=ACTORS)
    steps = [await env.reset(seed=0)]
    steps += [await env.step(action) for action in actions]
    await env.close()
    return steps


def test_the_cards_say_prices_and_what_is_told_of_a_model() -> None:
    (first,) = asyncio.run(_steps([]))
    assert first.text.splitlines()[-2:] == [
        "Heron ($100 per million tokens read, $1000 per million tokens written): good at sums",
        "Wren ($0.002 a call)",
    ]


def test_a_state_in_which_a_model_has_the_word_is_kept_and_forked_with_the_call_that_it_answers() -> None:
    said = Action.say("4").model_copy(update={"spent": (("prompt_tokens", 9.0), ("completion_tokens", 2.0))})

    async def futures() -> list[Step]:
        env = make(route.SPEC, TASK, actors=ACTORS)
        await env.reset(seed=0)
        await env.step(ask("Heron", "And?", "c1"))
        fork, other = await env.fork(), make(route.SPEC, TASK, actors=ACTORS)
        await other.reset(seed=0, start=await env.snapshot())
        return [await one.step(said) for one in (env, fork, other)]

    whole, *others = asyncio.run(futures())
    assert whole.observation == (Message(role="tool", content="Heron says: 4", tool_call_id="c1"),)
    assert others == [whole, whole]


def test_it_keeps_both_contracts_and_its_own_questions_are_played(tmp_path: Path) -> None:
    tasks = route.route_tasks(40, questions="maths")
    check_tasks(tasks, splits=("train", "heldout"))
    check_env_sync(lambda: make(route.SPEC, TASK, actors={"Wren": {"call": 1}}))
    check_task_sync(tasks[::9], lambda task: make(route.SPEC, task, actors=ACTORS), route.expert, seeds=(0,))
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"question": "Whose is it?", "answer": "Ada's", "split": "train"}) + "\n")
    (own,) = route.route_tasks(questions=str(file))
    assert (own.prompt, own.split) == ("Whose is it?", "train")
    check_task_sync(
        route.route_tasks(questions=str(file)), lambda task: make(route.SPEC, task, actors=ACTORS), route.expert
    )
    file.write_text('{"question": "Whose is it?"}\n')
    with pytest.raises(ValueError, match="line 1: no question with answer"):
        route.route_tasks(questions=str(file))


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        (TASK, {}, "name models by the option actors"),
        (route.route_tasks(1)[0], {"actors": {"Heron": 1}}, "of the scripted quiz"),
        (TASK, {"actors": {"agent": 1}}, "none 'agent', who asks"),
        (TASK, {"actors": {}}, "names nobody"),
        (TASK, {"actors": {"Heron": -1}}, "actors.Heron.sampled"),
        (TASK, {"actors": {"Heron": {"cost": 1}}}, "actors.Heron.cost"),
        (TASK, {"actors": {"Heron": 1}, "dear": 0}, "dear is 0"),
    ],
)
def test_models_that_cannot_be_are_refused(task: Task, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(route.SPEC, task, **options)
