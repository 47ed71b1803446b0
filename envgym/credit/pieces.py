"""Turns cut where forks left them in their middle, so that what works on turns measures stretches of tokens.

A fork at a token (`ForkPoint.token`) becomes one between two pieces of the turn: the parent's tokens before it are
a turn without reward, those after it another one. Nothing but the cuts changes: credit of pieces is the turns'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from envgym.credit.ledger import Floats, Ledger
from envgym.credit.term import Level, Meaning, Term
from envgym.env import Step
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.messages import Message

__all__ = ["in_pieces", "pieces_of"]


def in_pieces(term: Term) -> Term:
    """Credit of tokens as the same term gives it to groups whose turns are cut where forks left them.

    Who said the same as a cut turn without being forked from it is no sample of what lies between its pieces. Forks
    whose world failed cut nothing: they count for nothing, and so must where they left.
    Sources: segments of tokens between the branches of a tree, SPO (Guo et al. 2025, arXiv 2505.23564).
    """
    if (term.level, term.meaning) != (Level.TOKEN, Meaning.CREDIT):
        raise TypeError(f"in_pieces({term!r}): only credit of tokens is the same in pieces")

    def run(ledger: Ledger) -> Floats:
        if not ledger.left_G.any():
            return term.of(ledger)
        counting = [_counting(group) for group in ledger.groups]
        cut = [pieces_of(group) for group in counting]
        given = iter(term([group for group, _ in cut]))
        own: dict[int, Floats] = {
            id(episode): np.full(sum(len(turn.sampled_ids) for turn in episode.turns), np.nan)
            for group in ledger.groups
            for episode in group
        }
        for group, (_, skipped) in zip(counting, cut, strict=True):
            for episode, first in zip(group, skipped, strict=True):
                own[id(episode)] = np.concatenate([np.full(first, np.nan), next(given)])
        found = np.zeros(int(ledger.tokens[-1]))
        for row, (episode, numbers) in enumerate(ledger.parts):
            ends = np.cumsum([0, *(len(turn.sampled_ids) for turn in episode.turns)])
            for place, number in enumerate(numbers or range(len(episode.turns)), int(ledger.turns[row])):
                found[ledger.tokens[place] : ledger.tokens[place + 1]] = own[id(episode)][
                    ends[number] : ends[number + 1]
                ]
        return found

    return Term(term.name, term.level, term.meaning, run)


def _counting(group: Group) -> Group:
    """Without those whose world failed, but for those from whom others of the group were forked; else all of it."""
    kept = list(group)
    while True:
        parents = {one.parent.episode for one in kept if one.parent is not None}
        left = [one for one in kept if one.failure is None or one.id in parents]
        if len(left) == len(kept):
            return Group(group.task_id, tuple(left)) if left else group
        kept = left


def pieces_of(group: Group) -> tuple[Group, list[int]]:
    """The group in pieces, and how many first tokens of each member are its parent's and in none of its own."""
    members = {episode.id: episode for episode in group}
    cuts: dict[tuple[str, int], set[int]] = {}
    for episode in group:
        if episode.parent is not None and episode.turns:
            cuts.setdefault((_owner(members, episode.parent), episode.parent.turn), set()).add(episode.parent.token)
    found: list[Episode] = []
    paths: dict[str, list[tuple[int, int]]] = {}  # where each piece of a path begins: turn and token
    skipped = []
    for episode in group:
        fork, turn, first = episode.parent, 0, 0
        path: list[tuple[int, int]] = []
        if fork is not None:
            turn, first = fork.turn, fork.token if episode.turns else 0
            path = [begin for begin in paths[fork.episode] if begin < (turn, first)]
            fork = replace(fork, turn=len(path), token=0)
        made: list[Turn] = []
        for number, one in enumerate(episode.turns, turn):
            begin = first if number == turn else 0
            at = [begin, *sorted(token for token in cuts.get((episode.id, number), ()) if token > begin)]
            made += _cut(one, at)
            path = [*path, *((number, token) for token in at)]
        paths[episode.id] = path
        skipped.append(first)
        found.append(replace(episode, turns=tuple(made), parent=fork))
    return Group(group.task_id, tuple(found)), skipped


def _owner(members: Mapping[str, Episode], fork: ForkPoint) -> str:
    """The id of the episode that sampled the token before which a fork left."""
    owner = members[fork.episode]
    while owner.parent is not None and (fork.turn, fork.token) <= (owner.parent.turn, owner.parent.token):
        owner = members[owner.parent.episode]
    return owner.id


def _cut(turn: Turn, at: Sequence[int]) -> list[Turn]:
    """A turn's tokens from the first place on, in pieces that begin at each; the last has what the turn earned."""
    if list(at) == [0]:
        return [turn]
    found = []
    for begin, end in zip(at, [*at[1:], len(turn.sampled_ids)], strict=True):
        ids = turn.sampled_ids[begin:end]
        said = (Message(role="assistant", content=" ".join(map(str, ids.tolist()))),)
        piece = replace(
            turn, messages=said, sampled_ids=ids, logprobs=turn.logprobs[begin:end], versions=(), error=None
        )
        if begin:
            position = turn.position + len(turn.prompt_ids) + begin
            piece = replace(piece, prompt_ids=turn.prompt_ids[:0], roles=(), position=position)
        if begin != at[-1]:
            piece = replace(piece, step=Step())
        found.append(piece)
    return found
