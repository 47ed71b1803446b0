"""`route`: a question, several models with prices and skills, and a reward that counts what was paid.

A model answers right when its skill in the question's topic reaches the question's difficulty; its card says
how good it is in each topic, in words. Whoever asks the cheapest model that can gets 1.0; whoever pays more
gets less, as the cost reward of Router-R1 has it, here relative to the least that a right answer costs.
These models are scripted; with the option `actors` they are agents of the registry (see `route_agents`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Played, Rules, draws, lazy_tasks, played
from envgym_environments.tool.route_agents import RouteAgents, own_questions, problems
from envgym_environments.words import company, person, pick, title, town

__all__ = ["SPEC", "Route", "RouteState", "expert", "route_tasks"]

_TOPICS = ("history", "chemistry", "law", "medicine", "poetry", "geography", "finance", "sport")
_GRADES = ("weak", "fair", "good", "excellent")
_HARD = ("easy", "ordinary", "hard", "very hard")
_NAMES = ("Sparrow", "Heron", "Falcon", "Condor", "Wren", "Osprey")


def call_model(name: str) -> None:
    """Ask one of the models the question; its price is paid."""


def answer(value: str) -> None:
    """Give the answer. This ends the episode."""


@dataclass(slots=True)
class RouteState:
    """spent: what was paid so far, in thousandths of a dollar. called: whom."""

    spent: int = 0
    called: list[str] = field(default_factory=list)


class Route(Rules[RouteState]):
    """Rules of `route`. weight: how much of a right answer's reward is lost where the dearest model was called."""

    tools = (tool_spec(call_model), tool_spec(answer))
    state = RouteState
    uses_seed = False

    def __init__(self, task: Task, *, weight: float = 0.5) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight is {weight}; it must be 0 to 1")
        self.task, self._weight = task, weight
        asked = task.metadata.get("difficulty")
        self._scene: dict[str, Any] = _scene(
            task.seed, int(str(task.metadata["models"])), None if asked is None else int(str(asked))
        )

    def begin(self, seed: int) -> tuple[RouteState, str]:
        """The question and the cards of all models."""
        scene = self._scene
        cards = [
            f"{name} (${model['price'] / 1000:.3f} a call): "
            + ", ".join(f"{topic} {_GRADES[skill]}" for topic, skill in model["skills"].items())
            for name, model in scene["models"].items()
        ]
        return RouteState(), "\n".join([self.task.prompt, "The models:", *cards])

    def move(self, state: RouteState, said: ToolCall | str) -> Answer:
        """Pay for a model's answer, or give one."""
        assert isinstance(said, ToolCall)
        scene = self._scene
        if said.name == "answer":
            right = float(str(said.arguments["value"]).strip().casefold() == scene["truth"].casefold())
            most = max(model["price"] for model in scene["models"].values())
            lost = self._weight * max(0, state.spent - scene["least"]) / most
            reward = right * max(0.0, 1.0 - lost)
            channels = {"reward": reward, "right": right, "usd": state.spent / 1000}
            return Answer("right" if right else "wrong", reward, StopReason.GOAL if right else StopReason.SUBMITTED,
                          channels)  # fmt: skip
        name = str(said.arguments["name"])
        if name not in scene["models"]:
            return Answer(f"error: no model {name[:40]!r}; the models are: {', '.join(scene['models'])}")
        model = scene["models"][name]
        state.spent += model["price"]
        state.called.append(name)
        able = model["skills"][scene["topic"]] >= scene["difficulty"]
        return Answer(
            f"{name} says: {scene['truth'] if able else model['wrong']}", cost={"usd": model["price"] / 1000}
        )

    def key(self, state: RouteState) -> str:
        """Whom one called."""
        return "/".join([str(len(state.called)), *sorted(state.called)])  # never "", which is unknown

    def legal(self, state: RouteState) -> tuple[str, ...] | None:
        """Any text can be an answer."""
        return None


def _scene(seed: int, count: int, asked: int | None) -> dict[str, Any]:
    rng = draws(seed, count, 0x40)
    topic, drawn = pick(rng, _TOPICS), int(rng.integers(len(_HARD)))
    difficulty = drawn if asked is None else asked - 1
    truth = pick(rng, (person, town, company, title))
    models: dict[str, Any] = {}
    for place, name in enumerate(_NAMES[:count]):
        skills = {one: min(3, max(0, int(rng.integers(-1, 3)) + place // 2)) for one in _TOPICS}
        models[name] = {"price": int(2 + 3**place + rng.integers(4)), "skills": skills, "wrong": truth(rng)}
    models[_NAMES[count - 1]]["skills"][topic] = 3  # somebody can
    able = [model["price"] for model in models.values() if model["skills"][topic] >= difficulty]
    right = truth(rng)
    while right in {model["wrong"] for model in models.values()}:
        right = truth(rng)
    return {"topic": topic, "difficulty": difficulty, "models": models, "truth": right, "least": min(able)}


def route_tasks(
    count: int | None = 500,
    *,
    models: int = 4,
    difficulty: int | None = None,
    questions: str | None = None,
    seed: int = 0,
) -> TaskSet:
    """`count` questions (None: without end) among 2 to 6 models.

    difficulty: of the questions, 1 (easy) to 4 (very hard); None draws it. The same question at another one has the
    same models. questions: None for a quiz that only scripted models can answer; for models that are agents
    "maths", drawn problems, or a file of JSON lines with "question", "answer" and, if you like, "split".
    Raises ValueError for bounds that make none, and for a file that holds no questions.
    """
    if not 2 <= models <= len(_NAMES):
        raise ValueError(f"models is {models}; it must be 2 to {len(_NAMES)}")
    if difficulty is not None and not 1 <= difficulty <= len(_HARD):
        raise ValueError(f"difficulty is {difficulty}; it must be 1 to {len(_HARD)}, or None for what is drawn")
    if questions == "maths":
        return lazy_tasks(lambda index, split: problems(index, split, difficulty, seed), count)
    if questions is not None:
        return TaskSet(own_questions(questions)[:count])
    graded: dict[str, JsonValue] = {} if difficulty is None else {"difficulty": difficulty}
    mark = "" if difficulty is None else f"/difficulty-{difficulty}"

    def make(index: int, split: str) -> Task:
        number = seed * 1_000_003 + index
        scene = _scene(number, models, difficulty)
        prompt = f"Answer question {number} of the {scene['topic']} quiz, which is {_HARD[scene['difficulty']]}."
        return Task(id=f"route/{seed}/{models}/{index}{mark}", prompt=prompt, split=split, seed=number,
                    metadata={"models": models, **graded})  # fmt: skip

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Read the cards, call the cheapest model that is good enough, say what it says; of agents it asks none."""
    if "answer" in task.metadata:
        return Action.call("answer", value=str(task.metadata["answer"]))
    if len(seen) > 1:
        return Action.call("answer", value=seen[-1].text.partition(" says: ")[2])
    question, _, *cards = seen[0].text.splitlines()
    topic = next(one for one in _TOPICS if f"the {one} quiz" in question)
    least = _HARD.index(question.partition("which is ")[2].rstrip("."))
    able = [card for card in cards
            if _GRADES.index(card.partition(f"{topic} ")[2].split(",")[0]) >= least]  # fmt: skip
    cheapest = min(able, key=lambda card: float(card.partition("($")[2].split(" ")[0]))
    return Action.call("call_model", name=cheapest.split(" ")[0])


expert = expert_of(_decide)


def _make(task: Task, *, actors: Any = None, weight: float = 0.5, dear: float = 0.01) -> Played[Any]:
    """actors: of models that are agents a price each. weight: of the cost. dear: US dollars that cost all of it."""
    if actors is not None:
        return played(RouteAgents)(task, actors=actors, weight=weight, dear=dear)
    if "answer" in task.metadata:
        raise ValueError(f"task {task.id!r} asks what no scripted model knows: name models by the option actors")
    return played(Route)(task, weight=weight)


SPEC = EnvSpec(
    name="route",
    tasks=route_tasks,
    make=_make,
    description="Several models (scripted ones or agents) with prices: the right answer for the least money.",
    in_process=True,
)
