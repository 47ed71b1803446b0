"""Which weights sampled a token: version runs as counts, and the oldest version behind a turn or an episode.

Every staleness rule reads these functions, so all of them mean the same. A sampled token without a version is an
error here: nothing can be promised about it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envgym.episode import Episode, Turn
from envgym.policy import VersionRun

__all__ = ["Span", "counted_runs", "joined_runs", "oldest_version", "span"]


@dataclass(frozen=True, slots=True)
class Span:
    """The versions behind one turn: of its first and of its last sampled token, and the oldest of all."""

    start: int
    end: int
    oldest: int


def counted_runs(versions: Sequence[VersionRun], tokens: int) -> tuple[tuple[int, int], ...]:
    """The runs as (tokens, version), in order: empty ones left out, neighbours of one version joined.

    Raises ValueError unless they begin at token 0, ascend and so give each of the `tokens` a version.
    """
    if tokens == 0:
        return ()
    if not versions or versions[0].start != 0:
        known = versions[0].start if versions else tokens
        raise ValueError(
            f"the first {known} of {tokens} sampled tokens have no policy version; a policy's Completion.versions "
            "must begin with VersionRun(0, ...)"
        )
    found: list[tuple[int, int]] = []
    for run, end in zip(versions, [*(run.start for run in versions[1:]), tokens], strict=True):
        if end < run.start <= tokens:
            raise ValueError(f"version runs start at {[one.start for one in versions]}; starts must ascend")
        count = min(end, tokens) - run.start
        if count > 0 and found and found[-1][1] == run.version:
            found[-1] = (found[-1][0] + count, run.version)
        elif count > 0:
            found.append((count, run.version))
    return tuple(found)


def joined_runs(parts: Iterable[tuple[Sequence[VersionRun], int]]) -> tuple[VersionRun, ...]:
    """The runs of token sequences laid end to end; each part is (its runs, its number of tokens)."""
    found: list[VersionRun] = []
    at = 0
    for versions, tokens in parts:
        for count, version in counted_runs(versions, tokens):
            if not found or found[-1].version != version:
                found.append(VersionRun(at, version))
            at += count
    return tuple(found)


def span(turn: Turn) -> Span | None:
    """The versions behind a turn; None where no policy sampled it. Raises ValueError as `counted_runs`."""
    runs = counted_runs(turn.versions, len(turn.sampled_ids))
    if not runs:
        return None
    return Span(runs[0][1], runs[-1][1], min(version for _tokens, version in runs))


def oldest_version(episode: Episode) -> int | None:
    """The version behind the oldest sampled token of an episode's own turns; None where there is none.

    Raises ValueError, naming episode and turn, for sampled tokens whose version is unknown.
    """
    oldest: int | None = None
    for index, turn in enumerate(episode.turns):
        try:
            found = span(turn)
        except ValueError as error:
            raise ValueError(f"episode {episode.id}, turn {index}: {error}") from None
        if found is not None and (oldest is None or found.oldest < oldest):
            oldest = found.oldest
    return oldest
