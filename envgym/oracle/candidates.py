"""What the bench measures: the floor and the ceiling, a scheme for each kind of value, and those registered."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from envgym.credit import (
    Ledger,
    Level,
    Meaning,
    Running,
    Scheme,
    SchemeSpec,
    Term,
    advantage,
    checked_credit,
    estimated,
    forked,
    group_mean,
    outcome,
    rewards,
    spread,
    state_value,
)
from envgym.credit.ledger import Floats
from envgym.credit.sources import Estimate
from envgym.options import wrong_option
from envgym.oracle.bench import Candidate, Data, Scene, exact_values
from envgym.oracle.critic import fitted
from envgym.oracle.told import PROCESS, goal_of, spans_of

__all__ = ["BASIS", "candidate_of", "candidates_of", "learned_advantages", "learned_values"]


def learned_values(*, prior: float = 1.0, clock: int = 0) -> Term:
    """Values of states [M] of a table critic that is fitted to the very ledger it is asked about."""
    estimate: Estimate = lambda ledger: fitted(ledger, prior=prior, clock=clock)(ledger)  # noqa: E731
    return estimated(estimate, Level.STATE, Meaning.VALUE, name="learned()")


def learned_advantages(*, prior: float = 1.0, clock: int = 0) -> Term:
    """Credit of turns [N] from the same critic's values of actions: the world's chance is averaged out of it."""
    estimate: Estimate = lambda ledger: fitted(ledger, prior=prior, clock=clock).advantage(ledger)  # noqa: E731
    return estimated(estimate, Level.TURN, Meaning.CREDIT, name="learned actions()")


def _turns(values: Term, lam: float) -> Term:
    return advantage(rewards(), values, lam=lam) >> spread()


BASIS: tuple[Candidate, ...] = (
    Candidate("zero", 0.0 * (outcome() >> group_mean()) >> spread()),
    Candidate("group-outcome", outcome() >> group_mean() >> spread()),
    Candidate("state-values", _turns(state_value(), 0.0)),
    Candidate("forked-values", _turns(forked(), 0.0), "forks"),
    Candidate("state-values-forked", _turns(state_value(), 0.0), "forks"),
    Candidate("learned-values", _turns(learned_values(), 0.0)),
    Candidate("learned-values-forked", _turns(learned_values(), 0.0), "forks"),
    Candidate("learned-actions", learned_advantages() >> spread()),
    Candidate("learned-gae-0.95", _turns(learned_values(), 0.95)),
    Candidate("exact-values", exact_values),
)
"""zero and group-outcome below, exact-values above; between them a scheme for each place that values come from."""


def candidates_of(spec: SchemeSpec, options: Mapping[str, object]) -> list[Candidate]:
    """A registered scheme as one candidate; as two, with peers and with forks, where it makes something of both."""
    one = candidate_of(spec, options)
    return [one, replace(one, data="forks")] if spec.forks is not None and one.data == "peers" else [one]


def candidate_of(spec: SchemeSpec, options: Mapping[str, object], *, data: Data | None = None) -> Candidate:
    """A registered scheme as a candidate.

    It reads what its specification says: forks where it needs them (`SchemeSpec.forks`), or what `data` says. What
    else it needs and is not given is a table critic's, by the level that it needs it at (`_asked`), or what the
    world's grader says (`envgym.oracle.told`): the name of its channel, its words for spans; the world's goal; a
    running mean of earlier steps. Raises ValueError for what else is no estimate, and for an option it has not.
    """
    given = dict(options)
    late: dict[str, Callable[[Scene], object]] = {}
    reads: Data = "greedy" if spec.greedy else "peers"
    if spec.forks is not None and spec.forks.needed and spec.forks.instead not in given:
        reads = "forks"
    for need, level in spec.needs.items():
        if need in given:
            continue
        if level is not None:
            given[need] = _asked(need, level)
        elif need == spec.running:
            late[need], reads = _running, "earlier"
        elif need == "channel":
            given[need], reads = PROCESS, "graded"
        elif need in _TOLD:
            late[need] = _TOLD[need]
        else:
            raise ValueError(f"scheme {spec.name!r} needs {need}, which the bench has none of; {spec.summary}")
    if wrong := wrong_option(f"scheme {spec.name!r}: option", given, spec.make, given=set(late)):
        raise ValueError(wrong)
    if late:
        made = lambda scene: _term(spec, {**given, **{name: tell(scene) for name, tell in late.items()}})  # noqa: E731
        return Candidate(spec.name, made, data or reads)
    return Candidate(spec.name, _term(spec, given), data or reads)


def _term(spec: SchemeSpec, options: Mapping[str, object]) -> Term:
    made = spec.make(**options)
    term = made if isinstance(made, Term) else _of_function(spec.name, made)
    if term.level is not Level.TOKEN or term.meaning is not Meaning.CREDIT:
        raise ValueError(
            f"scheme {spec.name!r} gives {term.meaning}s of {term.level}s, and a scheme gives credit of tokens: "
            "end it with >> spread()"
        )
    return term


def _of_function(name: str, scheme: Scheme) -> Term:
    """A scheme that is a plain function of groups, as a term: its arrays of episodes in a ledger's order."""

    def run(ledger: Ledger) -> Floats:
        found, row = np.zeros(int(ledger.tokens[-1])), 0
        for credit in checked_credit(ledger.groups, scheme(ledger.groups)):
            episode, numbers = ledger.parts[row]
            begins = np.cumsum([0, *(len(turn.sampled_ids) for turn in episode.turns)])
            while True:  # an episode has a row for each of its actors
                for place, number in enumerate(numbers or range(len(episode.turns)), int(ledger.turns[row])):
                    own = credit[begins[number] : begins[number + 1]]
                    found[ledger.tokens[place] : ledger.tokens[place + 1]] = own
                row += 1
                if not numbers or row == ledger.rows or ledger.parts[row][0] is not episode:
                    break
                numbers = ledger.parts[row][1]
        return found

    return Term(f"{name}()", Level.TOKEN, Meaning.CREDIT, run)


def _running(scene: Scene) -> Running:
    """The running mean of each actor after the groups of earlier steps, with the decay and start of its source."""
    mean = Running(by=("actor",))
    for groups in scene.steps:
        mean = mean.updated(groups)
    return mean


_TOLD: Mapping[str, Callable[[Scene], object]] = {
    "spans": lambda scene: spans_of(scene.policy, scene.truth),
    "goal": lambda scene: goal_of(scene.policy.world),
}


def _asked(need: str, level: Level) -> Estimate:
    """What a scheme asks for, from a table critic that is fitted to the very ledger it is asked about.

    Values of states are its own; before a token stands the value of the turn's state. Of turns: "action_values"
    are Q, a "judge" says whether a turn was better than its state by more than a hundredth, anything else is by how
    much. Of tokens, but values: that, in equal parts for a turn's tokens, as an implicit reward would add up.
    """

    def asked(ledger: Ledger) -> Floats:
        critic = fitted(ledger, prior=1.0)
        values = critic(ledger)
        if level is Level.STATE:
            return values
        if need == "values":
            return values[ledger.before_N][ledger.turn_T]
        better = np.nan_to_num(critic.advantage(ledger))
        if level is Level.TOKEN:
            return (better / np.maximum(np.diff(ledger.tokens), 1))[ledger.turn_T]
        if need == "judge":
            return (better > 0.01).astype(np.float64)
        return values[ledger.before_N] + better if need == "action_values" else better

    return asked
