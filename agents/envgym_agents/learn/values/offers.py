"""What each kind of critic estimates, and whether a scheme finds in that what it needs: said before a run."""

import inspect
from collections.abc import Mapping, Sequence

from envgym.credit import Level, SchemeSpec
from envgym_agents.learn.config_reinforce import Critic, Reinforce

__all__ = ["OFFERS", "check_forks", "check_needs", "offered"]

OFFERS: Mapping[str, Mapping[str, Level]] = {
    "none": {},
    "turn": {"values": Level.STATE},
    "token": {"values": Level.TOKEN},
    "archer": {"action_values": Level.TURN, "values": Level.STATE, "token_baseline": Level.TOKEN},
    "progress": {"contributions": Level.TURN},
    "implicit": {"log_ratio": Level.TOKEN},
    "reward-model": {"contributions": Level.TURN},
}
"""What each kind of critic estimates, under the names that schemes need it by, and of which level."""


def offered(config: Critic) -> dict[str, Level]:
    """What a critic estimates as it is configured."""
    found = dict(OFFERS[config.kind])
    if config.kind == "archer" and not config.baseline:
        del found["token_baseline"]
    return found


def check_needs(config: Reinforce, spec: SchemeSpec, offers: Sequence[Mapping[str, Level]]) -> None:
    """Raise ValueError for a need that is met by no option and no critic, saying which option or critic would."""
    known = {name: level for given in offers for name, level in given.items()}
    unmet = [need for need in spec.needs if need not in known and need not in config.credit_options]
    used = known.keys() & inspect.signature(spec.make).parameters.keys()
    under_another_name = len(unmet) == 1 and not used and list(known.values()) == [spec.needs[unmet[0]]]
    for need, level in spec.needs.items():
        if need in config.credit_options or need == spec.running:
            continue
        if level is None:
            raise ValueError(f"scheme {spec.name!r} needs {need}{_given(spec, need)}")
        remedy = _remedy(spec, need, level, known)
        if need in known and known[need] is not level:
            raise ValueError(
                f"scheme {spec.name!r} needs {need} of {level}s, and reinforce.critic.kind {config.critic.kind!r} "
                f"estimates those of {known[need]}s; {remedy}"
            )
        if need in unmet and not under_another_name:
            other = f", which estimates {_listed(known)}" if known else ""
            raise ValueError(
                f"scheme {spec.name!r} needs {need} of {level}s; reinforce.critic.kind is "
                f"{config.critic.kind!r}{other}: {remedy}"
            )


def check_forks(config: Reinforce, spec: SchemeSpec, offers: Sequence[Mapping[str, Level]]) -> None:
    """Raise ValueError for a scheme that is nothing, or another one, without forks, where none are played."""
    forks = spec.forks
    if forks is None or not forks.needed or config.members.forks.points:
        return
    if forks.instead and (
        forks.instead in config.credit_options or any(one.get(forks.instead) is forks.of for one in offers)
    ):
        return
    is_then = f"is {forks.without!r} (name that)" if forks.without else "credits nothing"
    kinds = " or ".join(
        repr(kind) for kind, names in OFFERS.items() if forks.of and names.get(forks.instead) is forks.of
    )
    remedy = (
        f", or a critic that gives it {forks.instead} of {forks.of}s (reinforce.critic.kind {kinds})"
        if kinds
        else ""
    )
    raise ValueError(
        f"scheme {spec.name!r} lives on forks, and reinforce.members.forks.points is 0; without them it {is_then}: "
        f"set some points{remedy}"
    )


def _remedy(spec: SchemeSpec, need: str, level: Level, known: Mapping[str, Level]) -> str:
    """Which kind of critic estimates it: in the place of what there is if that gives all, or beside it."""
    able = [kind for kind, names in OFFERS.items() if names.get(need) is level]
    if not able:
        return "no critic of training estimates that"
    wanted = {name: of for name, of in spec.needs.items() if of is not None}
    alone = [kind for kind in able if wanted.items() <= OFFERS[kind].items()]
    kinds = " or ".join(map(repr, alone or able))
    used = any(known.get(name) is of for name, of in wanted.items())
    return f"let reinforce.critic.second.kind be {kinds}" if used and not alone else f"make it {kinds}"


def _given(spec: SchemeSpec, need: str) -> str:
    """How a need that is no estimate is met."""
    parameter = inspect.signature(spec.make).parameters.get(need)
    if parameter is not None and parameter.annotation in (str, int, float, bool):
        return f": give it as reinforce.credit_options.{need}"
    return ", which no configuration can give: such a scheme is made in Python"


def _listed(known: Mapping[str, Level]) -> str:
    return ", ".join(f"{name} of {level}s" for name, level in known.items())
