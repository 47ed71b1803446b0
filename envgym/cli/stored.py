"""What earlier calls of a collection left in its store, and whether this call may go on with it.

Nothing is played and nothing written here. An id is given once, so an episode that failed and is played again has
another: ``guess-s0-000007``, then ``guess-s0-000007.try2``. The last try of each counts, the others stay stored.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envgym.cli.plan import Plan
from envgym.cli.spending import Spent
from envgym.episode import Began
from envgym.provenance import IMAGE_DIGEST, UNKNOWN, bound_by
from envgym.registry import find
from envgym.store import StoreReader, is_store

__all__ = ["Stored", "check_store"]

_TRY = ".try"


@dataclass(frozen=True, slots=True)
class Stored:
    """What earlier calls left in a store, as far as this one goes on with it.

    ended: ids of the last tries that ended. unfinished: how many others began. spent: what all tries cost. images:
    the digest of every image that one of them was played in, by its name, where it was known. tries: the number of
    the try that counts, by the id of the first; those that are not there have one.
    """

    ended: frozenset[str] = frozenset()
    unfinished: int = 0
    spent: Spent = field(default_factory=Spent)
    images: Mapping[str, str] = field(default_factory=dict)
    tries: Mapping[str, int] = field(default_factory=dict)

    def id_of(self, first: str) -> str:
        """The id of the try that counts."""
        number = self.tries.get(first, 1)
        return first if number == 1 else f"{first}{_TRY}{number}"

    def counted(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these ids that count: no earlier tries of them."""
        return frozenset(name for name in names if name == self.id_of(_tried(name)[0]))

    def check_images(self, images: Mapping[str, str]) -> None:
        """Raise ValueError when one of them is another one now."""
        for name, now in images.items():
            if now not in (UNKNOWN, then := self.images.get(name, now)):
                raise ValueError(
                    f"--out was begun otherwise: image {name!r} was {then}, now it is {now}; go on with that "
                    "image, or name another store"
                )


def check_store(plan: Plan, out: Path, *, again: bool = False) -> Stored:
    """What earlier, interrupted calls of a plan left in its store. again: what failed counts no longer.

    Raises ValueError naming the first episode that this plan would not play just so.
    """
    if not is_store(out):
        return Stored()
    began, failed, spent = list[Began](), set[str](), Spent()
    with StoreReader(out) as reader:
        for episode in reader:
            began.append(Began.of(episode))
            failed.update([episode.id] if episode.failure is not None else [])
            spent = sum(map(Spent.of, episode.turns), spent)
        for found in reader.unfinished.values():
            began.append(found.began)
            spent = sum(map(Spent.of, found.turns), spent)
            spent += Spent() if found.said is None else Spent.of(found.said)
        ended, unfinished = frozenset(reader.ids), len(reader.unfinished)
    images = _check(plan, out, began)
    tries: dict[str, int] = {}
    for first, number in (_tried(one.id) for one in began):
        tries[first] = max(number, tries.get(first, 1))
    stored = Stored(ended, unfinished, spent, images, tries)
    if again:
        tries |= {first: number + 1 for first, number in tries.items() if stored.id_of(first) in failed}
    return Stored(stored.counted(ended), unfinished, spent, images, tries)


def _tried(name: str) -> tuple[str, int]:
    """The id of an episode's first try, and the number of this one."""
    first, _, number = name.rpartition(_TRY)
    return (first, int(number)) if first and number.isdecimal() else (name, 1)


def _check(plan: Plan, out: Path, began: Iterable[Began]) -> dict[str, str]:
    """The images that these were played in, and that they are of this plan."""
    jobs, images = {job.episode_id: job for job in plan.jobs(None)}, dict[str, str]()
    agent, advice = find("agents", plan.agent), "go on with the command that began it"
    for one in sorted(began, key=lambda one: one.id, reverse=True):
        first, _ = _tried(one.id)
        if first not in jobs:
            if (count := plan.number_of(first)) is not None:
                raise ValueError(
                    f"--out {out} holds episode {one.id!r}, and -n is {plan.episodes}: give -n {count + 1} or "
                    "more, or name another store"
                )
            raise ValueError(
                f"--out {out} holds episode {one.id!r}, which is not of this plan; {advice}, or name another"
            )
        job = jobs[first]
        then = {**dict(one.provenance), "task": one.task_id, "seed": str(one.seed)}
        digest = then.pop(IMAGE_DIGEST, UNKNOWN)  # which only a backend knows
        if digest != UNKNOWN:
            images[then.get("image", "")] = digest
        now = {**dict(job.rollout.provenance), "task": job.task_id, "seed": str(job.seed)}
        for name in {**then, **now}:
            was, is_now = (_told(facts, name, agent) for facts in (then, now))
            if was != is_now:
                raise ValueError(
                    f"--out {out} was begun otherwise: {name} was {was}, now it is {is_now}; {advice}, or name "
                    "another store"
                )
    return images


def _told(facts: Mapping[str, str], name: str, agent: object) -> str:
    """A fact as it is compared: without options of the agent that change nothing of what is sampled."""
    found = facts.get(name)
    if found is not None and name == "agent options":
        options = bound_by(agent, json.loads(found))
        found = json.dumps(options, sort_keys=True) if options else None
    if found is not None and name == "actors":
        others = json.loads(found)
        for one in others.values():
            one["options"] = bound_by(find("agents", one["agent"]), one["options"])
        found = json.dumps(others, sort_keys=True)
    return "not given" if found is None else found
