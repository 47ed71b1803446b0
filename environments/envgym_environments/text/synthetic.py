"""`synthetic`: compositions f(g(x)) of small skills, with the exact values of several ways to play.

After "From f(x) and g(x) to f(g(x))": functions over strings with meaningless names, nested to a depth. An
agent may have a tool apply them one by one, at a price, or answer at once. So the best value is known (1.0, by
skill), as is the best without any skill, and that of a uniformly random guess: what a learner reaches says what
it has learned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.words import pick, some

__all__ = ["SKILLS", "SPEC", "Synthetic", "SyntheticState", "expert", "synthetic_tasks", "values"]

_VOWELS = "aeiou"

SKILLS: dict[str, Callable[[str], str]] = {
    "fab": lambda x: x[::-1],
    "gol": lambda x: x[1:] + x[:1],
    "hux": lambda x: x[-1:] + x[:-1],
    "jib": lambda x: x + x[:1],
    "kem": lambda x: x[1:],
    "lop": lambda x: "".join(sorted(x)),
    "miv": lambda x: x[::2] + x[1::2],
    "nud": lambda x: "".join(chr((ord(c) - 96) % 26 + 97) for c in x),
    "pek": lambda x: "".join(_VOWELS[(_VOWELS.index(c) + 1) % 5] if c in _VOWELS else c for c in x),
    "quz": lambda x: "".join(dict.fromkeys(x)),
    "rov": lambda x: x[len(x) // 2 :] + x[: len(x) // 2],
    "sif": lambda x: x[:-1],
}
"""The atomic skills: strings of small letters to such strings."""


def apply(function: str) -> None:
    """Apply one function to the text at hand, at first the innermost word; it costs."""


def answer(text: str) -> None:
    """Say the value of the whole. This ends the episode."""


@dataclass(slots=True)
class SyntheticState:
    """text: the one at hand. used: how often `apply` was paid."""

    text: str
    used: int = 0


class Synthetic(Rules[SyntheticState]):
    """Rules of `synthetic`. Reward of the right answer: 1.0 less `price` for each `apply`, at least 0; else 0.0."""

    tools = (tool_spec(apply), tool_spec(answer))
    state = SyntheticState
    uses_seed = False

    def __init__(self, task: Task, *, price: float = 0.1) -> None:
        if not 0 <= price <= 1:
            raise ValueError(f"price is {price}; it must be 0 to 1")
        self.task, self._price = task, price
        self._truth, self._choices = str(task.metadata["truth"]), str(task.metadata["choices"]).split("|")

    def begin(self, seed: int) -> tuple[SyntheticState, str]:
        """The nested call, and what it may be."""
        return SyntheticState(
            str(self.task.metadata["word"])
        ), f"{self.task.prompt}\nOne of: {', '.join(self._choices)}."

    def move(self, state: SyntheticState, said: ToolCall | str) -> Answer:
        """One function, or the end."""
        assert isinstance(said, ToolCall)
        if said.name == "answer":
            right = str(said.arguments["text"]).strip() == self._truth
            reward = max(0.0, 1.0 - self._price * state.used) if right else 0.0
            channels = {"reward": reward, "right": float(right)}
            return Answer(
                "right" if right else "wrong", reward, StopReason.GOAL if right else StopReason.LOST, channels
            )
        skill = SKILLS.get(str(said.arguments["function"]))
        if skill is None:
            return Answer(f"error: the functions are: {', '.join(SKILLS)}")
        state.used += 1
        state.text = skill(state.text)[:40]
        return Answer(state.text)

    def key(self, state: SyntheticState) -> str:
        """What was paid, and where that led."""
        return f"{state.used}/{state.text}"

    def legal(self, state: SyntheticState) -> tuple[str, ...]:
        """All functions and all answers that are offered."""
        return tuple(f"apply {name}" for name in SKILLS) + tuple(f"answer {one}" for one in self._choices)


def values(task: Task, *, price: float = 0.1) -> dict[str, float]:
    """Exact values: "skilled" (answers at once, the optimum), "tools" (computes everything), "chance" (guesses)."""
    depth, choices = int(str(task.metadata["depth"])), str(task.metadata["choices"]).split("|")
    return {"skilled": 1.0, "tools": max(0.0, 1.0 - price * depth), "chance": 1.0 / len(choices)}


def synthetic_tasks(
    count: int | None = 1000, *, depth: int = 2, skills: int = len(SKILLS), choices: int = 8, seed: int = 0
) -> TaskSet:
    """`count` compositions (None: without end) of `depth` of the first `skills` functions.

    Held-out tasks have compositions that no training task has; of depth 1, where each skill must have been shown,
    words that none has. Raises ValueError for bounds that make none.
    """
    if not 1 <= depth <= 6 or not 2 <= skills <= len(SKILLS) or not 2 <= choices <= 16:
        raise ValueError(
            f"depth is {depth}, skills {skills}, choices {choices}; "
            f"they must be 1 to 6, 2 to {len(SKILLS)}, 2 to 16"
        )

    def make(index: int, split: str) -> Task:
        rng = draws(seed, index, depth, skills)
        names = list(SKILLS)[:skills]
        while True:
            chain = [pick(rng, names) for _ in range(depth)]
            length = depth + int(rng.integers(4, 8))  # so that no chain makes nothing of it
            word = "".join(pick(rng, "bcdfghlmnprst" if place % 2 else "aeiou") for place in range(length))
            if _held_out(chain, names, word) == (split == "heldout"):
                break
        truth, wrong = _value(chain, word), set[str]()
        while len(wrong) < choices - 1:
            other = _value([pick(rng, names) for _ in range(depth)], word)
            other = other if rng.random() < 0.8 else "".join(some(rng, other, len(other)))
            wrong |= {other} - {truth, ""}
        nested = "(".join([*reversed(chain), word]) + ")" * depth
        options = some(rng, sorted([truth, *wrong]), choices)
        return Task(
            id=f"synthetic/{seed}/{depth}/{index}",
            prompt=f"What is {nested}?",
            split=split,
            seed=index,
            metadata={"depth": depth, "word": word, "truth": truth, "choices": "|".join(options)},
        )

    return lazy_tasks(make, count)


def _held_out(chain: Sequence[str], names: Sequence[str], word: str) -> bool:
    """Whether a composition belongs to the held-out split; of a single skill, whether its word does."""
    if len(chain) == 1:
        return sum(map(ord, word)) % 5 == 0
    marked: int = sum(names.index(name) * 7**place for place, name in enumerate(chain))
    return marked % 5 == 0


def _value(chain: Sequence[str], word: str) -> str:
    for name in chain:
        word = SKILLS[name](word)
    return word


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Has all skills: answers at once."""
    parts = seen[0].text.partition("What is ")[2].partition(")")[0].split("(")
    return Action.call("answer", text=_value(parts[-2::-1], parts[-1]))


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="synthetic",
    tasks=synthetic_tasks,
    make=played(Synthetic),
    description="Compositions f(g(x)) of small skills, with exactly known values of several ways to play.",
    in_process=True,
)
