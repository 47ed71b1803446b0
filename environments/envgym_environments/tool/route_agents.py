"""`route` among real models: each is an actor of the episode with an agent of its own, and is paid by its tokens.

The option `actors` names them with their prices; who they are is said where agents of other actors are named
(``envgym collect --actor Heron=chat``). What a model's answer costs is what its agent reports of tokens
(`envgym.messages.Action.spent`) times its price, as in Router-R1 (Zhang et al. 2025, arXiv 2506.09033), whose price
counts what is sampled; here what is shown has a price, too, and a call.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from envgym.arguments import checked_between
from envgym.env import THE_AGENT, StopReason
from envgym.errors import EnvironmentFailure, Misconfigured
from envgym.messages import ToolCall
from envgym.rewards.cost import price_score
from envgym.task import Task
from envgym.tools import tool_spec
from envgym_environments.lines import read_lines
from envgym_environments.played import Answer, Rules, bounded
from envgym_environments.tool.python.play import agrees
from envgym_environments.tool.python.world import python_tasks

__all__ = ["Hired", "HiredState", "RouteAgents", "hired", "own_questions", "problems"]

_Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Hired(BaseModel):
    """What a model costs; a bare number is its price for what it samples.

    shown, sampled: US dollars per million tokens that it reads and writes. call: US dollars, whatever it says.
    says: what whoever routes is told of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shown: _Dollars = 0.0
    sampled: _Dollars = 0.0
    call: _Dollars = 0.0
    says: str = ""

    @model_validator(mode="before")
    @classmethod
    def _by_price(cls, given: Any) -> Any:
        return {"sampled": given} if isinstance(given, int | float) and not isinstance(given, bool) else given

    def price(self, name: str, spent: Mapping[str, float], *, before: bool = False) -> float:
        """US dollars for one answer.

        Where it has a price by token and told of none: raises Misconfigured, as every episode would meet it; with
        `before`, where it has told of some before, EnvironmentFailure.
        """
        total = self.call
        for price, kind in ((self.shown, "prompt_tokens"), (self.sampled, "completion_tokens")):
            if price and kind not in spent:
                raise (EnvironmentFailure if before else Misconfigured)(
                    f"actor {name!r} has a price by token, and whoever plays it reports no {kind}: name an agent "
                    f"that does (--actor {name}=AGENT), or give it a price by call (actors.{name}.call)"
                )
            total += price * spent.get(kind, 0.0) / 1e6
        return total

    def card(self, name: str) -> str:
        """A line on it."""
        prices = [
            f"${price:g} {unit}"
            for price, unit in (
                (self.call, "a call"),
                (self.shown, "per million tokens read"),
                (self.sampled, "per million tokens written"),
            )
            if price
        ]
        return f"{name} ({', '.join(prices) or 'free'})" + (f": {self.says}" if self.says else "")


_REPORTED: set[tuple[str, Hired]] = set()
"""Models, with their prices, that told of all their tokens in some episode of this process: one that then tells of
none has a hiccup, and is no mistake of who named it."""
_HIRED = TypeAdapter(dict[str, Hired])


def hired(given: Any) -> dict[str, Hired]:
    """The option `actors` as somebody wrote it: a price or a table for each name. Raises ValueError."""
    try:
        found = _HIRED.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"actors.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if not found or THE_AGENT in found or "" in found:
        raise ValueError(
            f"actors names {', '.join(map(repr, found)) or 'nobody'}; name one model at least, and none "
            f"{THE_AGENT!r}, who asks"
        )
    return found


def ask_model(name: str, question: str) -> None:
    """Ask one of the models something; its answer costs by its tokens. The only call of its message."""


def answer(value: str) -> None:
    """Give the answer. This ends the episode."""


@dataclass(slots=True)
class HiredState:
    """asked: who has the word, "" for the agent. usd, tokens: paid for, in all. heard: whom and what."""

    asked: str = ""
    usd: float = 0.0
    tokens: float = 0.0
    heard: list[tuple[str, str, str]] = field(default_factory=list)


class RouteAgents(Rules[HiredState]):
    """Rules of `route` among agents.

    actors: see `Hired`. weight: how much of a right answer's reward is lost where `dear` US dollars were paid.
    """

    tools = (tool_spec(ask_model), tool_spec(answer))
    state = HiredState
    uses_seed = False
    alone = frozenset({"ask_model"})

    def __init__(self, task: Task, *, actors: Any, weight: float = 0.5, dear: float = 0.01) -> None:
        checked_between("weight", weight, 0, 1)
        if not checked_between("dear", dear, 0, math.inf):
            raise ValueError("dear is 0; it must be above 0, in US dollars")
        self.task, self._weight, self._dear = task, weight, dear
        self._actors = hired(actors)
        if "answer" not in task.metadata:
            raise ValueError(
                f"task {task.id!r} is of the scripted quiz, whose answers no other model can know: take tasks with "
                "the option questions ('maths', or a file)"
            )
        self._truth = str(task.metadata["answer"])

    def begin(self, seed: int) -> tuple[HiredState, str]:
        """The question and the cards of all models."""
        cards = [one.card(name) for name, one in self._actors.items()]
        return HiredState(), "\n".join([self.task.prompt, "The models:", *cards])

    def spent(self, state: HiredState, amounts: Mapping[str, float]) -> Mapping[str, float]:
        """The model's answer is paid."""
        asked = (state.asked, self._actors[state.asked])
        before = asked in _REPORTED or any(name == state.asked for name, _, _ in state.heard[:-1])
        usd = asked[1].price(state.asked, amounts, before=before)
        _REPORTED.add(asked)
        state.usd += usd
        state.tokens += amounts.get("completion_tokens", 0.0)
        return {"priced_usd": usd}

    def move(self, state: HiredState, said: ToolCall | str) -> Answer:
        """Give the word to a model, pass on what it says, or take the answer."""
        if isinstance(said, str):
            name, state.asked = state.asked, ""
            state.heard[-1] = (name, state.heard[-1][1], bounded(said))
            return Answer(f"{name} says: {said}" if said.strip() else f"{name} said nothing that is text")
        if said.name == "answer":
            return self._graded(state, str(said.arguments["value"]))
        name, question = str(said.arguments["name"]), str(said.arguments["question"])
        if name not in self._actors:
            return Answer(f"error: no model {name[:40]!r}; the models are: {', '.join(self._actors)}")
        if not question.strip():
            return Answer("error: the question is empty")
        state.asked = name
        state.heard.append((name, bounded(question), ""))
        return Answer(question)

    def _graded(self, state: HiredState, value: str) -> Answer:
        right = float(agrees(value, self._truth))
        reward = right * (1.0 - self._weight * (1.0 - price_score(state.usd, most=self._dear)))
        channels = {"reward": reward, "right": right, "usd": state.usd, "tokens": state.tokens}
        stop = StopReason.GOAL if right else StopReason.SUBMITTED
        return Answer("right" if right else "wrong", reward, stop, channels)

    def key(self, state: HiredState) -> str:
        """What was asked of whom, and what they said."""
        return hashlib.blake2b(json.dumps(state.heard).encode(), digest_size=12).hexdigest()

    def speaker(self, state: HiredState) -> str:
        """Whoever is asked."""
        return state.asked or THE_AGENT


def problems(index: int, split: str, difficulty: int | None, seed: int) -> Task:
    """A problem of maths that a model can solve or not: those of `python`, without its interpreter."""
    drawn = python_tasks(None, topic="maths", difficulty=difficulty, seed=seed)[index]
    kept: dict[str, JsonValue] = {name: drawn.metadata[name] for name in ("answer", "difficulty")}
    return Task(
        id=f"route/{drawn.id}",
        prompt=drawn.prompt.partition("\nCompute it with")[0],
        split=split,
        seed=index,
        metadata=kept,
    )


def own_questions(path: str) -> list[Task]:
    """Questions of one's own: JSON lines with "question", "answer" and, if you like, "split" (else "heldout").

    Raises ValueError with the line of what is none.
    """

    def read(line: str) -> dict[str, str]:
        raw = json.loads(line)
        return {"question": str(raw["question"]), "answer": str(raw["answer"]),
                "split": str(raw.get("split", "heldout"))}  # fmt: skip

    return [
        Task(
            id=f"route/own/{index}",
            prompt=one["question"],
            split=one["split"],
            seed=index,
            metadata={"answer": one["answer"]},
        )
        for index, one in enumerate(read_lines(path, read, what="question with answer as JSON"))
    ]
