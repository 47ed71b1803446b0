"""How hard tasks are can be said, for each environment whose document says so: in the range, and nothing beyond."""

import asyncio
from statistics import fmean

import pytest

from envgym.episode import Episode
from envgym.limits import Limits
from envgym.registry import find, make, spec
from envgym.rollout import Rollout
from envgym.testing.check_task import play

LEVELS = {
    ("ask", "missing"): (1, 5),
    ("household", "rooms"): (2, 9),
    ("household", "errands"): (1, 12),
    ("route", "difficulty"): (1, 4),
    ("route", "models"): (2, 6),
    ("search", "hops"): (1, 3),
    ("service", "difficulty"): (1, 5),
    ("sql", "complexity"): (1, 5),
    ("synthetic", "depth"): (1, 6),
    ("twenty-questions", "things"): (2, 70),
}
"""The document's table of options, with the least and the most of each."""
LONGER = {
    ("ask", "missing"): 5,
    ("household", "errands"): 12,
    ("household", "rooms"): 9,
    ("search", "hops"): 3,
    ("service", "difficulty"): 4,
    ("twenty-questions", "things"): 70,
}
"""Of which a harder level takes the expert more turns than the least; a service's fifth changes nothing."""


def by_expert(name: str, option: str, level: int, count: int = 6) -> list[Episode]:
    tasks, rollout = spec(name).tasks(count, **{option: level}), Rollout(limits=Limits(turns=400))
    return [
        asyncio.run(play(task, lambda one: make(name, one), find("agents", f"{name}-expert"), 0, rollout))
        for task in tasks
    ]


@pytest.mark.parametrize(("name", "option"), LEVELS)
def test_a_level_beyond_the_range_is_refused(name: str, option: str) -> None:
    least, most = LEVELS[name, option]
    for level in (least - 1, most + 1):
        with pytest.raises(ValueError, match=rf"{option} (is )?{level}.* to \d"):
            spec(name).tasks(2, **{option: level})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), LEVELS)
def test_the_expert_solves_the_easiest_and_the_hardest_tasks_and_those_are_other_tasks(
    name: str, option: str
) -> None:
    least, most = LEVELS[name, option]
    easy, hard = by_expert(name, option, least), by_expert(name, option, most)
    assert [episode.reward for episode in (*easy, *hard)] == pytest.approx([1.0] * 12)
    turns = [fmean(len(episode.turns) for episode in episodes) for episodes in (easy, hard)]
    if (name, option) in LONGER:
        longer = fmean(len(episode.turns) for episode in by_expert(name, option, LONGER[name, option]))
        assert longer > turns[0], (turns, longer)
    told = [{episode.root.text for episode in episodes} for episodes in (easy, hard)]
    assert not told[0] & told[1]


@pytest.mark.slow
def test_harder_questions_to_a_database_take_longer_queries_and_fewer_tries_make_wordle_harder() -> None:
    length = [
        fmean(len(str(task.metadata["sql"])) for task in spec("sql").tasks(60, complexity=level))
        for level in range(1, 6)
    ]
    assert length == sorted(length), length
    won = [
        fmean(episode.reward or 0.0 for episode in by_expert("wordle", "tries", tries, 20)) for tries in (2, 4, 6)
    ]
    assert won[0] < won[1] <= won[2] == 1.0, won
    with pytest.raises(ValueError, match="tries is 0"):
        spec("wordle").tasks(2, tries=0)
