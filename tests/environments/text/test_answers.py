"""Answers to reasoning-gym: which scorers may get them, and what a scorer's exception means."""

import asyncio
import math
from pathlib import Path

import pytest
from envgym_environments.text import reasoning
from envgym_environments.text.answers import EXPRESSIONS, LITERALS, judged, refused

from envgym.env import Step
from envgym.errors import GraderFailure
from envgym.messages import Action
from envgym.registry import make

PROGRAMS = (
    "open({0!r}, 'w')",
    "[open({0!r}, 'w')]",
    "f'{{chr(7)}}{0}'",
    " \t(lambda: open({0!r}, 'w'))()",
    "\x0copen({0!r}, 'w')",
    "[open(x, 'w') for x in [{0!r}]]",
    "(x := open({0!r}, 'w'))",
    "sin.__class__.__init__.__globals__['__builtins__']['open']({0!r}, 'w')",
)


def _say(generator: str, said: str) -> Step:
    async def play() -> Step:
        env = make(reasoning.SPEC, reasoning.reasoning_tasks(1, generators=generator)[0])
        await env.reset(seed=0)
        return await env.step(Action.say(said))

    return asyncio.run(play())


QUICK = ("string_insertion", "countdown")
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(LITERALS | set(EXPRESSIONS))
]


@pytest.mark.parametrize("generator", EVERY)
def test_no_answer_to_reasoning_gym_runs_as_a_program(generator: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for program in PROGRAMS:
        step = _say(generator, program.format(str(made)))
        assert step.reward == 0.0
        assert "not read: " in step.text
    assert not made.exists()


@pytest.mark.parametrize("generator", EVERY)
def test_the_librarys_own_answers_are_let_through(generator: str) -> None:
    for task in reasoning.reasoning_tasks(12, generators=generator):
        own = str(reasoning.found(task)[1]["answer"])
        assert refused(generator, own) is None or "Integral(" in own, own


@pytest.mark.slow
def test_an_integral_that_the_library_could_not_compute_is_paid_as_its_own_answer_only() -> None:
    (task, own), *_ = [
        (task, own)
        for task in reasoning.reasoning_tasks(12, generators="intermediate_integration")
        if "Integral(" in (own := str(reasoning.found(task)[1]["answer"]))
    ]
    for said, reward in ((own, 1.0), (f"{own} + 1", 0.0)):
        env = reasoning.SPEC.make(task)
        asyncio.run(env.reset(seed=0))
        assert asyncio.run(env.step(Action.say(said))).reward == reward


def test_values_are_read_and_powers_are_bounded() -> None:
    assert refused("binary_matrix", "[[0, 1], [2, -1]]") is None
    assert refused("string_insertion", "['A', 'B']") is None
    assert refused("n_queens", "_ Q\nQ _") is None
    assert "BinOp" in str(refused("spiral_matrix", "[0] * 10**10"))
    assert "nested" in str(refused("spiral_matrix", "-" * 9000 + "1"))
    assert "nested" in str(refused("countdown", "-" * 999 + "1"))
    assert refused("intermediate_integration", "2*(2 - 8*x)**(3/2)/3 + exp(-x**2)*C") is None
    for hard in ("9**9**9", "2**(x - x + 999*999)", "((9**50)**50)**50", "2**101"):
        assert "powers reach" in str(refused("countdown", hard)), hard
    for far in ("1e999999999", "1E+99_99"):
        assert "exponent" in str(refused("coin_flip", far))


def test_an_integral_that_was_not_computed_is_no_answer() -> None:
    for generator in ("simple_integration", "intermediate_integration"):
        dataset, entry = reasoning.found(reasoning.reasoning_tasks(1, generators=generator)[0])
        data = entry["metadata"]
        asked = f"Integral({data['integrand']}, {data['variable']})"
        assert dataset.score_answer(asked, entry) == 1.0, "the library pays for the question"
        step = _say(generator, asked)
        assert (step.reward, "'Integral' is no name" in step.text) == (0.0, True)


def test_an_answer_that_a_scorer_cannot_read_is_worth_nothing_and_told() -> None:
    step = _say("prime_factorization", "I do not know")
    assert (step.reward, step.channels["unread"]) == (0.0, 1.0)
    assert "invalid literal" in step.text
    assert _say("chain_sum", "7").channels["unread"] == 0.0


def test_a_scorer_that_breaks_on_its_own_answer_is_a_failure_and_no_reward() -> None:
    def broken(answer: str) -> float:
        raise KeyError(answer)

    with pytest.raises(GraderFailure, match="own answer 'right'"):
        judged(broken, "wrong", "right")
    for odd in (math.nan, 1.5, -0.1):
        with pytest.raises(GraderFailure, match="from 0 to 1"):
            judged(lambda _, odd=odd: odd, "wrong", "right")
    assert judged(lambda answer: float(answer == "right"), "right", "right") == (1.0, "")
