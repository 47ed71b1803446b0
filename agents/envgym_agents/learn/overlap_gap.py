"""Whether the policy samples from the very weights that the learner has, measured on what it has just sampled."""

import numpy as np
import torch

from envgym.buffer import Taken
from envgym.credit.reference import is_greedy
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.head import Asked
from envgym_agents.learn.learns import Learns
from envgym_agents.learn.pack import batches, rows_of

__all__ = ["sampler_gap"]


@torch.no_grad()
def sampler_gap(learner: Learns, taken: Taken, config: Reinforce) -> dict[str, float]:
    """The largest difference, in nats, between a log-probability as sampled and as the learner computes it.

    Of one episode that the learner's present weights have sampled; {} where the batch has none: of older weights'
    tokens the difference is their age, too. Under a mask of what is open; {} where other processes have the mask.
    """
    asked, other = None, None
    if config.loss.mask.top_p < 1:
        asked, other = Asked(top_p=config.loss.mask.top_p), learner.other
        if other is None:
            return {}
    for group in taken.groups:
        for episode in group:
            runs = [run.version for turn in episode.turns for run in turn.versions]
            if episode.failure is not None or is_greedy(episode) or set(runs) != {taken.version}:
                continue
            ones, path = np.ones(episode.sampled_tokens, np.float32), group.path(episode)
            rows = rows_of(episode, ones, history=path, root=group.root(episode))
            parts = batches(rows, max_tokens=learner.max_tokens, share_prefixes=False, device=learner.device)
            found = [(learner.scorer.score(part, other=other, asked=asked), part) for part in parts]
            gaps = [((one.logprobs - part.logprobs).abs() * one.inside).max() for one, part in found]
            return {"sampler_gap": float(torch.stack(gaps).max())}
    return {}
