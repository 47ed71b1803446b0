"""Who plays the other actors of an episode: agents of the registry, by the actor's name.

A simulated user is one: the world asks for "user", and a configuration names who that is. It is found and checked
here before anything is played; how it plays is `envgym.cast`'s.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envgym.cast import seed_of
from envgym.env import Env
from envgym.options import wrong_option
from envgym.policy import Agent
from envgym.registry import find

__all__ = ["Other", "check_others", "makers", "others_of"]


class Other(BaseModel):
    """An agent for one actor; its bare name is enough where it takes no options.

    tools: whether it is shown the tools of the world, which are the agent's: a user has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    agent: str
    options: dict[str, Any] = Field(default_factory=dict)
    tools: bool = False

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"agent": given} if isinstance(given, str) else given

    def make(self, env: Env, *, seed: int) -> Agent:
        """The agent for one episode in this world."""
        factory = find("agents", self.agent)
        wants = "tools" in inspect.signature(factory).parameters
        shown = {"tools": env.tools if self.tools else ()} if wants else {}
        made: Agent = factory(env.task, seed=seed, **shown, **self.options)
        return made


def others_of(given: Mapping[str, Any], where: str) -> dict[str, Other]:
    """Of each actor a name, or a table ``{agent, options, tools}``, as somebody wrote it; `where` names the place.

    Raises ValueError, one line for each mistake, and as `check_others`.
    """
    found, wrong = dict[str, Other](), list[str]()
    for actor, one in given.items():
        try:
            found[actor] = Other.model_validate(one)
        except ValidationError as error:
            for each in error.errors():
                place = ".".join(map(str, (actor, *each["loc"])))
                wrong.append(f"{where} {place} = {str(each['input'])[:80]!r}: {each['msg']}")
    if wrong:
        raise ValueError("\n".join(wrong))
    check_others(found, where)
    return found


def check_others(others: Mapping[str, Other], where: str) -> None:
    """Raise ValueError for an agent that there is not, and for an option that it lacks or needs."""
    for actor, one in others.items():
        try:
            factory = find("agents", one.agent)
        except ValueError as error:
            raise ValueError(f"{where} {actor}: {error}") from None
        place = f"{where} {actor}: options"
        if (wrong := wrong_option(place, one.options, factory, given={"seed", "tools"}, skip=1)) is not None:
            raise ValueError(wrong)


def makers(others: Mapping[str, Other], *, seed: int) -> dict[str, Callable[[Env], Agent]]:
    """What `Job.others` takes; each draws from a seed of its own, a function of the episode's and its name."""
    return {actor: partial(one.make, seed=seed_of(seed, actor)) for actor, one in others.items()}
