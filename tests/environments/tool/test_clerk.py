"""A clerk who sees no more than an agent solves every drawn case; words that it cannot read lose it."""

import asyncio
from itertools import pairwise
from statistics import fmean

import pytest
from envgym_environments.tool.service.clerk import Lost, clerk
from envgym_environments.tool.service.desk import Case
from envgym_environments.tool.service.user import answer_of
from envgym_environments.tool.service.world import SPEC, expert, service_tasks

from envgym import Action, Message
from envgym.env import Step, StopReason
from envgym.messages import ToolCall
from envgym.registry import make
from envgym.task import Task


def at_the_desk(task: Task, seed: int = 0) -> Step:
    """The last step of a case that the clerk plays, of whom only the desk and what is seen is known."""
    return seen_at(task, seed)[-1]


def turns_of(task: Task) -> int:
    return len(seen_at(task)) - 1


def seen_at(task: Task, seed: int = 0) -> list[Step]:
    async def main() -> list[Step]:
        env = make(SPEC, task)
        seen = [await env.reset(seed=seed)]
        while seen[-1].stop is None:
            said = clerk(str(task.metadata["service"]), [step.text for step in seen])
            action = Action.say(said) if isinstance(said, str) else None
            action = action or Action(message=Message(role="assistant", tool_calls=(said,)))
            seen.append(await env.step(action))
        await env.close()
        return seen

    return asyncio.run(main())


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("service", ["files", "office", "retail"])
def test_every_drawn_case_is_solved_by_who_sees_no_more_than_an_agent(service: str, level: int) -> None:
    for seed, task in enumerate(service_tasks(20, service=service, difficulty=level)):
        end = at_the_desk(task, seed)
        assert (end.reward, end.stop) == (1.0, StopReason.GOAL), (task.id, task.prompt, end)


def test_a_file_that_is_named_without_its_folder_is_the_only_one_of_that_name() -> None:
    task = service_tasks(210, service="files", difficulty=4)[209]  # two files had that name
    assert at_the_desk(task).reward == 1.0


def test_a_mail_that_is_named_by_its_subject_is_the_only_one_of_that_subject() -> None:
    task = service_tasks(386, service="office", difficulty=1)[385]  # two mails had that subject
    assert at_the_desk(task, 385).reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("service", ["files", "office", "retail"])
def test_each_level_but_the_fifth_takes_the_clerk_longer_than_the_one_before(service: str) -> None:
    turns = [
        fmean(turns_of(task) for task in service_tasks(40, service=service, difficulty=level))
        for level in range(1, 5)
    ]
    assert all(one < other for one, other in pairwise(turns)), turns


def test_words_that_the_clerk_cannot_read_lose_it_and_the_expert_goes_on_by_the_script_of_the_case() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=1) if "ancel" in task.prompt)
    opening = f"{task.prompt}"
    with pytest.raises(Lost):
        clerk("retail", [f"User: {opening}", "Why do you ask?"])

    async def said(*heard: str) -> list[str]:
        agent, texts = expert(task, seed=0), []
        for text in (f"User: {opening}", *heard):
            action = (await agent.act(Step((Message(role="user", content=text),)))).action
            texts.append(action.text or action.calls[0].name)
        return texts

    assert asyncio.run(said("Why do you ask?", "What?", "Well.", "Go on."))[:3] == [
        "Please tell me: your email?", "Please tell me: email?", "Please tell me: name?",
    ]  # fmt: skip


def test_a_day_that_the_user_spoke_of_names_what_is_to_be_done_and_another_day_is_no_objection() -> None:
    cancel = ToolCall(name="cancel_event", arguments={"event_id": 3})
    case = Case("I am away on 2026-03-04: cancel all I have then.", "me", gold=[cancel])
    for proposal, yes in (
        ("I cancel the event of 2026-03-04. Shall I proceed?", True),
        ("I cancel the event of 2026-03-05. Shall I proceed?", False),
        ("Of 2026-03-04 I cancel what was moved from 2026-03-05. Shall I proceed?", True),
    ):
        assert answer_of(case, 0, proposal)[2] is yes, proposal
