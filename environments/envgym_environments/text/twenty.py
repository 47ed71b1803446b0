"""`twenty-questions`: find what the other thinks of by questions that are answered with yes or no.

The things and what is true of them are a table; the secret is drawn from the episode's seed. Questions name a
property; a guess names a thing. Held-out tasks leave out other things than training ones, so their best
questions differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.words import pick, some

__all__ = ["SPEC", "THINGS", "Twenty", "TwentyState", "expert", "twenty_tasks"]

_TABLE = """
dog: alive animal mammal legs fur tame
cat: alive animal mammal legs fur tame small
horse: alive animal mammal legs fur tame large
cow: alive animal mammal legs fur tame large food
lion: alive animal mammal legs fur wild large hunts
wolf: alive animal mammal legs fur wild hunts
bat: alive animal mammal legs fur wild small flies
whale: alive animal mammal wild large swims
dolphin: alive animal mammal wild large swims hunts
eagle: alive animal bird legs wild flies hunts
hen: alive animal bird legs tame small food
penguin: alive animal bird legs wild swims hunts
ostrich: alive animal bird legs wild large
parrot: alive animal bird legs tame small flies
shark: alive animal fish wild large swims hunts
salmon: alive animal fish wild swims food
goldfish: alive animal fish tame small swims
frog: alive animal legs wild small swims
snake: alive animal wild hunts
turtle: alive animal legs wild swims
ant: alive animal insect legs wild small
bee: alive animal insect legs small flies
butterfly: alive animal insect legs wild small flies
spider: alive animal legs wild small hunts
oak: alive plant wild large wooden
apple-tree: alive plant tame large wooden
rose: alive plant tame small
grass: alive plant wild small
mushroom: alive wild small food
wheat: alive plant tame food
apple: plant food small
bread: food made
cheese: food made soft
soup: food made liquid hot
coffee: made liquid hot drink
milk: liquid drink white
water: liquid drink
wine: made liquid drink
car: made metal large moves machine
bicycle: made metal moves machine
train: made metal large moves machine long
plane: made metal large moves machine flies
ship: made metal large moves machine swims
boat: made wooden moves swims
hammer: made metal tool small
saw: made metal tool
knife: made metal tool small kitchen
spoon: made metal tool small kitchen
pan: made metal tool kitchen hot
oven: made metal machine kitchen hot large
fridge: made metal machine kitchen large white
phone: made machine small electric
radio: made machine electric
lamp: made electric hot
computer: made machine electric metal
table: made wooden furniture
chair: made wooden furniture legs
bed: made wooden furniture soft large
sofa: made furniture soft large
pillow: made soft white
shirt: made soft worn
shoe: made worn
hat: made worn small
coin: made metal small money
book: made paper
newspaper: made paper soft
candle: made small hot white
window: made glass large
bottle: made glass
mirror: made glass furniture
"""

THINGS: dict[str, frozenset[str]] = {
    name: frozenset(parts.split())
    for name, _, parts in (line.partition(": ") for line in _TABLE.strip().splitlines())
}
PROPERTIES = tuple(sorted(frozenset().union(*THINGS.values())))


def ask(property: str) -> None:
    """Ask whether it has a property of the list; the answer is yes or no."""


def guess(thing: str) -> None:
    """Guess the thing; a wrong guess is a question too."""


@dataclass(slots=True)
class TwentyState:
    """secret: the thing. told: questions with their answers, in order. left: questions that are left."""

    secret: str
    left: int
    told: list[str] = field(default_factory=list)


class Twenty(Rules[TwentyState]):
    """Rules of `twenty-questions`. Reward 1.0 for the right guess (GOAL), 0.0 without questions left (LOST)."""

    tools = (tool_spec(ask), tool_spec(guess))
    state = TwentyState
    uses_seed = True

    def __init__(self, task: Task, *, questions: int = 20) -> None:
        if questions < 1:
            raise ValueError(f"questions is {questions}; it must be at least 1")
        self.task, self._questions = task, questions
        self._things = str(task.metadata["things"]).split("|")

    def begin(self, seed: int) -> tuple[TwentyState, str]:
        """A thing of the task's list."""
        secret = pick(draws(seed, self.task.seed, 0x20), self._things)
        text = f"{self.task.prompt}\nThings: {', '.join(self._things)}.\nProperties: {', '.join(PROPERTIES)}."
        return TwentyState(secret, self._questions), text

    def move(self, state: TwentyState, said: ToolCall | str) -> Answer:
        """A question or a guess; one that makes no sense costs nothing."""
        assert isinstance(said, ToolCall)
        what = str(next(iter(said.arguments.values()))).strip().lower()
        if what not in (PROPERTIES if said.name == "ask" else self._things):
            return Answer(f"error: {what[:40]!r} is not in the list")
        state.left -= 1
        if said.name == "guess" and what == state.secret:
            return Answer("right", 1.0, StopReason.GOAL, {"reward": 1.0, "left": float(state.left)})
        answer = f"{what}: {'yes' if what in THINGS[state.secret] else 'no'}"
        state.told.append(answer)
        if not state.left:
            return Answer(f"{answer}; it was {state.secret}", 0.0, StopReason.LOST, {"reward": 0.0})
        return Answer(answer)

    def key(self, state: TwentyState) -> str:
        """What is known."""
        return f"{state.left}/{sorted(state.told)}"

    def legal(self, state: TwentyState) -> tuple[str, ...]:
        """Every question and every guess."""
        return tuple(f"ask {one}" for one in PROPERTIES) + tuple(f"guess {one}" for one in self._things)


def twenty_tasks(count: int | None = 500, *, things: int = 30, seed: int = 0) -> TaskSet:
    """`count` games (None: without end), each over `things` things. Raises ValueError for bounds that make none."""
    if not 2 <= things <= len(THINGS):
        raise ValueError(f"things is {things}; it must be 2 to {len(THINGS)}")

    def make(index: int, split: str) -> Task:
        chosen = sorted(some(draws(seed, index, things), list(THINGS), things))
        prompt = "I think of a thing. Find it with at most twenty questions and guesses."
        return Task(id=f"twenty/{seed}/{things}/{index}", prompt=prompt, split=split, seed=index,
                    metadata={"things": "|".join(chosen)})  # fmt: skip

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Ask what halves what is left; guess where no question can tell."""
    left = seen[0].text.partition("Things: ")[2].partition(".")[0].split(", ")
    asked: set[str] = set()
    for step in seen[1:]:
        what, _, answer = step.text.partition(": ")
        asked.add(what)
        left = [
            one
            for one in left
            if one != what and (what not in PROPERTIES or (what in THINGS[one]) == (answer == "yes"))
        ]
    best = min(PROPERTIES, key=lambda one: (one in asked, abs(2 * sum(one in THINGS[x] for x in left) - len(left))))
    splits = 0 < sum(best in THINGS[one] for one in left) < len(left)
    return Action.call("ask", property=best) if splits and len(left) > 2 else Action.call("guess", thing=left[0])


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="twenty-questions",
    tasks=twenty_tasks,
    make=played(Twenty),
    description="Find a thing by questions that are answered with yes or no.",
    in_process=True,
)
