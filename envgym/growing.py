"""Jobs that grow into trees: an episode is played, and when it has ended, states of it are continued.

The continuations are jobs like others (retried, recorded, played once however often a run is killed), children of
the episode they left, in the same group. Nothing is played here; who stands where is `envgym.stems`'.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from envgym.episode import Episode, Turn
from envgym.jobs import Job
from envgym.limits import Limits
from envgym.stems import Branch, Stems

__all__ = ["growing"]


def growing(
    job: Job, stems: Stems, *, name: Callable[[str], str] = str, wanted: Callable[[Episode], bool] = lambda _: True
) -> Job:
    """The same job, followed by continuations of its episode as `stems.forking` says.

    stems: stays open until they are played. Their ids are ``<episode>/<turn>/<number>``, as `name` changes that;
    their seeds a function of the episode's, the turn and the number. wanted: of which episodes there are any.
    A continuation has the turns that its parent had left. Of a job that is played elsewhere nothing stands ready:
    its continuations are played there too, wherever there is room, from the record of their parent.
    """

    def then(episode: Episode) -> Sequence[Job]:
        if not wanted(episode):
            return ()
        return [
            _continuation(job, Branch.of(episode, turn, stems), number, name)
            for turn in stems.forking.turns_of(episode)
            for number in range(stems.forking.times)
        ]

    rollout = job.rollout if job.elsewhere is not None else replace(job.rollout, stems=stems)
    return replace(job, rollout=rollout, then=then)


def _continuation(job: Job, branch: Branch, number: int, name: Callable[[str], str]) -> Job:
    at, draws = branch.at, np.random.SeedSequence([job.seed, 22, branch.at.turn, number])
    rollout = replace(
        job.rollout, limits=_left(job.rollout.limits, branch.before.turns), snapshot_every=0, durable=False
    )
    return replace(
        job,
        seed=int(draws.generate_state(1, np.uint64)[0] >> 1),
        episode_id=name(f"{at.episode}/{at.turn}/{number}"),
        rollout=rollout,
        branch=branch,
    )


def _left(limits: Limits, turns: Sequence[Turn]) -> Limits:
    """What an episode may still take after these turns; where it was forked, it took one more itself."""
    tokens = limits.tokens
    if tokens is not None:
        tokens = max(1, tokens - sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns))
    return limits.model_copy(
        update={"turns": limits.turns - sum(not turn.thought for turn in turns), "tokens": tokens}
    )
