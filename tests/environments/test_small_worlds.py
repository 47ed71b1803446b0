"""The small worlds of text and tools: each meets both contracts, and each has what it is for."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from envgym_environments.text import household, retry, synthetic, twenty, wordle
from envgym_environments.tool import ask, route, search
from envgym_environments.tool.retrieval import Corpus

from envgym.env import Step, StopReason
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import make
from envgym.task import Task
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent

WORLDS: dict[str, Any] = {
    "ask": ask, "route": route, "search": search, "household": household, "synthetic": synthetic,
    "twenty-questions": twenty, "wordle": wordle,
}  # fmt: skip
EACH = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


def _word(step: Step, tools: Any, rng: np.random.Generator) -> Action:
    return Action.call("guess", word=wordle.WORDS[int(rng.integers(len(wordle.WORDS)))])


@EACH
def test_it_meets_the_environment_contract(world: Any) -> None:
    check_env_sync(lambda: make(world.SPEC, 1), policy=_word if world is wordle else None)


@EACH
def test_its_tasks_are_solved_by_the_expert_and_not_by_doing_nothing(world: Any) -> None:
    tasks = world.SPEC.tasks(60)[::8]
    check_task_sync(tasks, lambda task: make(world.SPEC, task), world.expert, seeds=(0,), limits=Limits(turns=120),
                    seeded=world.SPEC.seeded)  # fmt: skip


@pytest.mark.parametrize(
    "world", [ask, household, route, search, synthetic, twenty, wordle], ids=lambda one: one.SPEC.name
)
def test_its_expert_is_told_no_more_than_an_agent(world: Any) -> None:
    def blind(task: Task, *, seed: int = 0) -> Any:
        return world.expert(task.model_copy(update={"metadata": {}, "seed": 0}), seed=seed)

    tasks = world.SPEC.tasks(60)[::8]
    check_task_sync(tasks, lambda task: make(world.SPEC, task), blind, seeds=(0,), limits=Limits(turns=120),
                    seeded=world.SPEC.seeded)  # fmt: skip


@pytest.mark.slow
def test_every_kind_of_question_to_a_corpus_is_answered_by_who_reads_it() -> None:
    asked: dict[str, Task] = {}
    for task in search.search_tasks(600):
        asked.setdefault(next(one for one in sorted(search._HOPS, key=len, reverse=True) if _fits(one, task)), task)
    assert len(asked) == len(search._HOPS) >= 20
    for task in asked.values():
        blind = search.expert(task.model_copy(update={"metadata": {}}))
        assert asyncio.run(_steps_of(blind, make(search.SPEC, task)))[-1].reward == 1.0, task.prompt


def _fits(question: str, task: Task) -> bool:
    chain = search._HOPS[question]
    before, after = question.split("{}")
    right = task.prompt.startswith(before) and task.prompt.endswith(after)
    return right and task.metadata["hops"] == len(chain) - 1


async def _steps_of(agent: Any, env: Any) -> list[Step]:
    steps = [await env.reset(seed=0)]
    while steps[-1].stop is None:
        steps.append(await env.step((await agent.act(steps[-1])).action))
    await env.close()
    return steps


@EACH
def test_its_tasks_are_drawn_without_end_and_a_wrong_bound_is_refused(world: Any) -> None:
    check_tasks(world.SPEC.tasks(40), splits=("train", "heldout"), seeded=world.SPEC.seeded)
    far = world.SPEC.tasks(None)[100_000]
    assert far.id not in {task.id for task in world.SPEC.tasks(40)}
    with pytest.raises(ValueError, match="count is 0"):
        world.SPEC.tasks(0)


async def _steps(env: Any, actions: list[Any], seed: int = 0) -> list[Step]:
    steps = [await env.reset(seed=seed)]
    for action in actions:
        steps.append(await env.step(Action.say(action) if isinstance(action, str) else action))
    await env.close()
    return steps


def test_a_needless_question_costs() -> None:
    task = next(task for task in ask.ask_tasks(50) if task.metadata["said"])
    slot = str(task.metadata["said"]).split("|")[0]
    missing = next(one for one in str(task.metadata["slots"]).split("|")
                   if one not in f"{task.metadata['said']}|{task.metadata['profile']}".split("|"))  # fmt: skip
    env = make(ask.SPEC, task)
    asked = asyncio.run(_steps(env, [Action.call("ask", slot=slot), Action.call("ask", slot=missing), "send"]))
    assert asked[1].text.startswith("You could know that")
    assert asked[2].text.startswith("It is ")
    assert asked[-1].channels["needless"] == 1.0
    assert asked[-1].reward == 0.0


def test_harder_questions_need_dearer_models_and_the_expert_finds_them() -> None:
    spent = []
    for difficulty in (1, 2, 3, 4):
        tasks = route.route_tasks(40, difficulty=difficulty)
        assert all(task.prompt.endswith(f"which is {route._HARD[difficulty - 1]}.") for task in tasks)
        check_task_sync(tasks[::4], lambda task: make(route.SPEC, task), route.expert, seeds=(0,))
        spent.append(sum(route._scene(task.seed, 4, difficulty)["least"] for task in tasks))
    assert spent == sorted(set(spent))
    with pytest.raises(ValueError, match="difficulty is 5; it must be 1 to 4"):
        route.route_tasks(difficulty=5)


def test_a_dearer_model_than_needed_costs() -> None:
    task = route.route_tasks(5)[0]
    dear = asyncio.run(_steps(make(route.SPEC, task), [Action.call("call_model", name="Condor")]))[1]
    truth = dear.text.partition(" says: ")[2]
    assert dear.cost["usd"] > 0.02
    paid = asyncio.run(
        _steps(
            make(route.SPEC, task), [Action.call("call_model", name="Condor"), Action.call("answer", value=truth)]
        )
    )[-1]
    assert paid.channels["right"] == 1.0
    assert 0.4 < (paid.reward or 0.0) <= 1.0


def test_values_of_synthetic_tasks_are_exact() -> None:
    for task in synthetic.synthetic_tasks(20, depth=3):
        known = synthetic.values(task)
        chain = task.prompt.removeprefix("What is ").split("(")[:-1][::-1]
        steps = asyncio.run(_steps(make(synthetic.SPEC, task), [f"apply {name}" for name in chain]))
        env = make(synthetic.SPEC, task)
        end = asyncio.run(_steps(env, [*(f"apply {name}" for name in chain), f"answer {steps[-1].text}"]))[-1]
        assert end.stop is StopReason.GOAL
        assert end.reward == pytest.approx(known["tools"])
        rewards = [
            asyncio.run(_steps(make(synthetic.SPEC, task), [call]))[-1].reward
            for call in (steps[0].legal or ()) if call.startswith("answer")
        ]  # fmt: skip
        assert max(rewards) == known["skilled"]
        assert sum(rewards) / len(rewards) == pytest.approx(known["chance"])


def test_held_out_compositions_are_never_trained_on() -> None:
    tasks = synthetic.synthetic_tasks(400, depth=3)
    chains = {
        split: {task.prompt.rpartition("(")[0] for task in tasks.split(split)} for split in ("train", "heldout")
    }
    assert not chains["train"] & chains["heldout"]


def test_fewer_guesses_make_wordle_harder_and_another_seed_asks_for_other_words() -> None:
    task = wordle.wordle_tasks(2, tries=2)[1]
    assert task.prompt == "Find the secret word of five letters in two guesses."
    wrong = [Action.call("guess", word=word) for word in wordle.WORDS[:3]]
    ends = asyncio.run(_steps(make(wordle.SPEC, task), wrong[:2]))
    assert [step.stop for step in ends[1:]] == [None, "lost"]
    secrets = [
        [asyncio.run(_secret(task)) for task in wordle.wordle_tasks(6, tries=1, seed=seed)] for seed in (0, 0, 1)
    ]
    assert secrets[0] == secrets[1] != secrets[2]
    with pytest.raises(ValueError, match="tries is 0"):
        wordle.wordle_tasks(tries=0)


async def _secret(task: Task) -> str:
    """What is told when the one guess was wrong; "" where it was right."""
    steps = await _steps(make(wordle.SPEC, task), [Action.call("guess", word=wordle.WORDS[0])])
    return steps[-1].text.partition("it was ")[2]


def test_of_a_single_skill_the_words_are_held_out_since_no_skill_can_be() -> None:
    tasks = synthetic.synthetic_tasks(2000, depth=1, choices=2)
    words, skills = (
        {split: {part(task) for task in tasks.split(split)} for split in ("train", "heldout")}
        for part in (lambda task: task.metadata["word"], lambda task: task.prompt.partition("(")[0])
    )
    assert skills["train"] == skills["heldout"], "nobody knows a skill that was never shown"
    assert len(words["heldout"]) > 350
    assert not words["train"] & words["heldout"]


@pytest.mark.parametrize(
    ("secret", "word", "expected"),
    [
        ("apple", "apple", "GGGGG"),
        ("apple", "paper", "yyGy-"),
        ("steel", "eagle", "y--yy"),
        ("alert", "eerie", "y-y--"),
    ],
)
def test_letters_are_marked_as_often_as_the_secret_has_them(secret: str, word: str, expected: str) -> None:
    assert wordle.marks(secret, word) == expected


def test_all_things_differ_in_what_is_true_of_them_or_are_few() -> None:
    same: dict[Any, list[str]] = {}
    for name, parts in twenty.THINGS.items():
        same.setdefault(parts, []).append(name)
    assert max(map(len, same.values())) <= 2


def test_errands_of_a_household_take_tens_of_turns_and_pay_one_by_one() -> None:
    task = household.household_tasks(5, rooms=7, errands=6)[1]

    async def play() -> list[Step]:
        env, agent = make(household.SPEC, task), household.expert(task)
        steps = [await env.reset(seed=0)]
        while steps[-1].stop is None:
            steps.append(await env.step((await agent.act(steps[-1])).action))
        return steps

    steps = asyncio.run(play())
    assert len(steps) > 30
    assert sum(step.reward or 0.0 for step in steps) == pytest.approx(1.0)
    assert sum(step.reward is not None for step in steps) == 6


def test_a_corpus_of_ones_own_is_searched(tmp_path) -> None:
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    lines = [{"title": "Heron", "text": "A wading bird."}, {"title": "Basalt", "text": "A volcanic rock."}]
    corpus.write_text("\n".join(map(json.dumps, lines)))
    asked = {"question": "Which bird wades?", "answer": "heron"}
    led = {"question": "What does the heron's rock come from?", "answer": "volcanoes", "path": ["Heron", "Basalt"]}
    questions.write_text("\n".join(map(json.dumps, (asked, led))))
    tasks = search.search_tasks(corpus=str(corpus), questions=str(questions))
    check_task_sync(tasks, lambda task: make(search.SPEC, task), search.expert, seeds=(0,))
    found = asyncio.run(_steps(make(search.SPEC, tasks[0]), ["search 'volcanic rocks or rock'", "answer Heron"]))
    assert found[1].text == "Basalt: A volcanic rock...."
    assert found[2].reward == 1.0
    with pytest.raises(ValueError, match="both files"):
        search.search_tasks(corpus=str(corpus))
    questions.write_text(json.dumps(asked | {"path": "Heron"}))
    with pytest.raises(ValueError, match="path is 'Heron'; it must be a list"):
        search.search_tasks(corpus=str(corpus), questions=str(questions))


BIRDS = (
    ("Heron", "The heron is a bird of rivers."),
    ("Stork", "The stork is a bird, and its feathers are white."),
    ("Basalt", "Basalt is a rock of volcanoes."),
    ("Plume", "A plume is feathers of a bird."),
)


@pytest.mark.slow
def test_vectors_find_what_shares_no_word_with_the_query_and_words_do_not() -> None:
    by_words, by_vectors = Corpus(BIRDS), Corpus(BIRDS, retrieval="lsa")
    assert by_words.best("feathers", 4) == ["Plume", "Stork"]
    alike = set(by_vectors.best("feathers", 4))
    assert alike == {"Plume", "Stork", "Heron"}, "feathers stand beside birds; rocks beside neither"
    assert by_vectors.best("granite", 4) == by_vectors.best("", 4) == []
    assert Corpus(BIRDS[:1], retrieval="lsa").best("rivers", 4) == ["Heron"]
    with pytest.raises(ValueError, match="retrieval is 'dense'"):
        Corpus(BIRDS, retrieval="dense")


@pytest.mark.slow
def test_search_by_vectors_keeps_both_contracts() -> None:
    tasks = search.search_tasks(120)[::40]
    check_env_sync(lambda: make(search.SPEC, tasks[0], retrieval="lsa"), turns=4)
    check_task_sync(tasks, lambda task: make(search.SPEC, task, retrieval="lsa"), search.expert, seeds=(0,))
    found = [asyncio.run(_steps(make(search.SPEC, tasks[0], retrieval=kind), ["search 'a history of pages'"]))[1]
             for kind in ("bm25", "lsa")]  # fmt: skip
    assert found[0].text != found[1].text, "the option is honoured"


def _right(task: Any) -> str:
    return f"answer {task.metadata['task']['metadata']['truth']}"


def test_retry_meets_both_contracts_around_another_environment() -> None:
    tasks = retry.retry_tasks("synthetic", count=20)
    check_env_sync(lambda: make(retry.SPEC, tasks[0]), turns=4)
    check_env_sync(lambda: make(retry.SPEC, retry.retry_tasks("guess", count=5)[0]), uses_seed=True)
    check_task_sync(tasks, lambda task: make(retry.SPEC, task),
                    lambda task, *, seed: ScriptedAgent([_right(task)]), seeds=(0,))  # fmt: skip


def test_a_wrong_answer_is_only_told_to_be_wrong_and_later_ones_are_worth_less() -> None:
    task = retry.retry_tasks("synthetic", count=5)[0]
    wrong = next(f"answer {one}" for one in str(task.metadata["task"]["metadata"]["choices"]).split("|")
                 if _right(task) != f"answer {one}")  # fmt: skip
    steps = asyncio.run(_steps(make(retry.SPEC, task), [wrong, wrong, _right(task)]))
    assert steps[1].text == "That is not right. Try again."
    assert (steps[1].reward, steps[2].reward) == (None, -0.1)
    assert steps[3].reward == pytest.approx(0.64)
    lost = asyncio.run(_steps(make(retry.SPEC, task, tries=2), [wrong, wrong]))
    assert lost[-1].stop is StopReason.LOST
    with pytest.raises(ValueError, match="sandbox"):
        make(retry.SPEC, task.model_copy(update={"metadata": {"inner": "python", "task": task.model_dump()}}))
