"""NLPO's action mask while sampling: a token is drawn among those that an older copy of the policy leaves open.

The copy reads the same contexts, so beside each session of the policy is one of the copy, with a cache of its own.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch import Tensor

from envgym.limits import Sampling
from envgym_agents.policies.draw import Ids, nucleus
from envgym_agents.policies.engine import Part, engine_for
from envgym_agents.policies.sessions import Pool, TransformerSession

__all__ = ["Beside", "Masking"]

Beside = tuple[TransformerSession, Part]
"""A session of the masking policy, and its part of a pass."""


class Masking:
    """The masking policy. model: of the policy's vocabulary, its own from here on; top_p: what stays open of it.

    capacity: most positions that its caches have room for. version: count of renewals.
    Source: Ramamurthy et al. 2023 (arXiv 2210.01241), on NLPO.
    """

    def __init__(self, model: Any, *, top_p: float, capacity: int) -> None:
        self.model, self.top_p, self.version = model, top_p, 0
        self._engine = engine_for(model)
        self._pool = Pool(capacity, packs=self._engine.packs)

    def renew(self, weights: Mapping[str, Tensor]) -> None:
        """Mask by these weights from here on; what is cached was computed by others. Between two passes only."""
        self.model.load_state_dict(weights)
        self.version += 1

    def reserve(self, session: TransformerSession, of: Part, *, busy: Set[TransformerSession]) -> Beside | None:
        """What it computes so that it knows the context of the policy's part, and in which session; None: no room.

        busy: its sessions that have parts in this pass.
        """
        if session.beside is None or session.beside.pool is not self._pool:
            session.beside = self._pool.open()
        part = session.beside.reserve(of.context, self.version, busy=busy, room=None, images=tuple(of.images))
        return None if part is None else (session.beside, part)

    def nuclei(self, parts: Sequence[Part], asked: Sequence[tuple[Sampling, bool]]) -> list[Ids]:
        """In the worker thread: what is open after each part. asked: its sampling, and whether it is the first."""
        rows = zip(self._engine.logits(parts), asked, strict=True)
        return [nucleus(row, one, first=first, top_p=self.top_p) for row, (one, first) in rows]

    def commit(self, beside: Sequence[Beside]) -> None:
        """A pass is done: these parts are cached."""
        for session, part in beside:
            session.commit(part, self.version)

    def close(self) -> None:
        """Free every cache."""
        self._pool.clear()
