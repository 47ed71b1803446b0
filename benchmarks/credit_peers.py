"""Our credit beside what verl (0.9.1), TRL (1.16.0) and torchrl compute from the same episodes: where they agree.

Agreement is the largest difference of a token's credit. Where a peer differs, the law that it breaks is named and
the size of the difference is printed; what is a convention and no law is said, too. A peer that is not installed is
left out and named (scripts/setup.sh puts verl and TRL beside the environment). verl and torchrl compute in float32;
TRL's statements are run in float64, and agreement with it is asked to a part in 10^12.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import _credit_peers as peers
import numpy as np
from _harness import Row, finish, options
from _trl_formulas import installed
from _trl_rows import with_trl

from envgym.credit import (
    Ledger,
    Level,
    Meaning,
    estimated,
    group_mean,
    leave_one_out,
    outcome,
    rewards,
    spread,
    token_advantage,
)
from envgym.credit.reference import GREEDY
from envgym.credit.schemes.baselines import remax
from envgym.credit.schemes.batch import reinforce_plus_plus
from envgym.env import StopReason
from envgym.episode import Group
from envgym.testing.credit_groups import made_episode, made_turn

GAMMA, LAM = 1.0, 0.95
AGREE = 1e-4


def groups(rng) -> list[Group]:
    """Eight groups of four episodes, each of a few turns that end with observations, a reward at the end."""
    made = []
    for number in range(8):
        members = []
        for member in range(4):
            lengths = rng.integers(2, 9, int(rng.integers(2, 6)))
            last = len(lengths) - 1
            won = float(np.round(rng.uniform(0, 1), 3))
            turns = [
                made_turn(won if k == last else 0.0, sampled=int(n), prompt=int(rng.integers(2, 6)))
                for k, n in enumerate(lengths)
            ]
            members.append(made_episode(f"g{number}-{member}", turns, task=f"t{number}"))
        made.append(Group(f"t{number}", tuple(members)))
    return made


def with_observations(ledger: Ledger, values_T):
    """Rewards, values, mask [G, L] as a peer is given them: observation tokens between turns, of value 1."""
    import torch

    rows = []
    for row in range(ledger.rows):
        turns = ledger.parts[row][0].turns
        r, v, m = [], [], []
        for turn, number in zip(turns, range(ledger.turns[row], ledger.turns[row + 1]), strict=True):
            before = len(turn.prompt_ids) if number > ledger.turns[row] else 0
            own = slice(ledger.tokens[number], ledger.tokens[number + 1])
            count = len(turn.sampled_ids)
            r += [0.0] * (before + count - 1) + [float(ledger.reward_N[number])]
            v += [1.0] * before + values_T[own].tolist()
            m += [0.0] * before + [1.0] * count
        rows.append((r, v, m))
    width = max(len(r) for r, _, _ in rows)
    arrays = [[one + [0.0] * (width - len(one)) for one in column] for column in zip(*rows, strict=True)]
    return [torch.tensor(array, dtype=torch.float32) for array in arrays]


def packed(found, mask) -> np.ndarray:
    """A peer's padded result at the sampled tokens."""
    return found.numpy()[mask.numpy() > 0]


def white(values) -> np.ndarray:
    """As verl whitens: over tokens, with the unbiased variance."""
    return (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)


def apart(one, two) -> float:
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(two, np.float64)).max())


def with_verl(verl, found: list[Group], rng) -> list[Row]:
    ledger = Ledger.of(found)
    values_T = rng.standard_normal(int(ledger.tokens[-1])).astype(np.float32)
    r, v, mask = with_observations(ledger, values_T)
    index = ledger.group_G
    critic = estimated(lambda _: values_T, Level.TOKEN, Meaning.VALUE)
    ours = token_advantage(critic, earned=rewards(), gamma=GAMMA, lam=LAM)
    plain, divided = (outcome() >> group_mean(scale=scale) >> spread() for scale in ("none", "std"))
    loo = outcome() >> leave_one_out() >> spread()

    def grpo(r, mask, index, std):
        return packed(
            verl.compute_grpo_outcome_advantage(r.clone(), mask, index, norm_adv_by_std_in_grpo=std)[0], mask
        )

    rloo = packed(verl.compute_rloo_outcome_advantage(r.clone(), mask, index)[0], mask)
    gae = packed(verl.compute_gae_advantage_return(r, v, mask, GAMMA, LAM)[0], mask)
    alone = [Group(found[0].task_id, found[0].episodes[:1])]
    one = Ledger.of(alone)
    first = slice(0, 1)
    rows = [
        Row("verl GAE, whitened over tokens", apart(white(ours.credit(ledger)), gae), AGREE, "agree", "abs",
            bar=1.0),
        Row("verl GRPO without division", apart(plain.credit(ledger), grpo(r, mask, index, False)), AGREE, "agree",
            "abs", bar=1.0),
        Row("verl RLOO", apart(loo.credit(ledger), rloo), AGREE, "agree", "abs", bar=1.0),
        # a convention: torch's standard deviation divides by n - 1, the papers' by n
        Row("verl GRPO with division, times sqrt(4/3)",
            apart(divided.credit(ledger), grpo(r, mask, index, True) * np.sqrt(4 / 3)), 10 * AGREE, "agree", "abs",
            bar=1.0),
        Row("law d: verl GRPO, a group of one", float(np.abs(plain.credit(one)).max()),
            float(np.abs(grpo(r[first], mask[first], index[first], True)).max()), "verl", "abs"),
        Row("law d: verl RLOO, a group of one", float(np.abs(loo.credit(one)).max()),
            float(np.abs(packed(verl.compute_rloo_outcome_advantage(r[first].clone(), mask[first], index[first])[0],
                                mask[first])).max()), "verl", "abs"),
    ]  # fmt: skip
    rows += _whole_batch(verl, found, r, mask)
    cut = [Group(g.task_id, tuple(replace(e, stop=StopReason.TOKEN_LIMIT) for e in g)) for g in found]
    moved = apart(ours.credit(Ledger.of(cut)), ours.credit(ledger))
    rows.append(Row("law h: GAE after a bound changes by", moved, 0.0, "verl", "abs"))
    rows.append(_rows_law(verl, found, plain, r, mask, index))
    return rows


def _whole_batch(verl, found, r, mask) -> list[Row]:
    """What knows no groups: REINFORCE++ (its variance is the unbiased one), and ReMax with first members greedy."""
    import torch

    ledger = Ledger.of(found)
    count = int(ledger.tokens[-1])
    theirs = verl.compute_reinforce_plus_plus_outcome_advantage(r, mask, config=SimpleNamespace(gamma=GAMMA))[0]
    ours = reinforce_plus_plus().credit(ledger) * np.sqrt((count - 1) / count)
    marked = [Group(g.task_id, (replace(g.episodes[0], provenance=(GREEDY,)), *g.episodes[1:])) for g in found]
    base = torch.tensor([float(found[group].episodes[0].reward) for group in ledger.group_G], dtype=r.dtype)
    compared = packed(verl.compute_remax_outcome_advantage(r, base, mask)[0], mask)
    first = np.repeat([episode.id.endswith("-0") for episode, _ in ledger.parts], np.diff(ledger.row_tokens))
    alike = apart(np.where(first, 0, remax().credit(Ledger.of(marked))), np.where(first, 0, compared))
    return [
        Row("verl REINFORCE++, over tokens", apart(ours, packed(theirs, mask)), AGREE, "agree", "abs", bar=1.0),
        Row("verl ReMax, of those that are not greedy", alike, AGREE, "agree", "abs", bar=1.0),
    ]


def _rows_law(verl, found, plain, r, mask, index) -> Row:
    """Law a: the longest episode is given to the peer as two rows, as step-wise training does."""
    import torch

    longest = int(mask.sum(1).argmax())
    half = int(mask.shape[1] // 2)
    head, tail = mask[longest].clone(), mask[longest].clone()
    head[half:], tail[:half] = 0, 0
    both = torch.cat([mask, tail[None]])
    both[longest] = head
    scored = torch.cat([r, r[longest][None]])  # its outcome belongs to both of its rows
    split, _ = verl.compute_grpo_outcome_advantage(
        scored, both, np.append(index, index[longest]), norm_adv_by_std_in_grpo=False
    )
    whole, _ = verl.compute_grpo_outcome_advantage(r.clone(), mask, index, norm_adv_by_std_in_grpo=False)
    change = float((split[:-1] - whole)[both[:-1] > 0].abs().max())

    def cut(episode):
        return replace(
            episode, turns=tuple(replace(turn, segment=k, position=0) for k, turn in enumerate(episode.turns))
        )

    recut = [Group(group.task_id, tuple(map(cut, group))) for group in found]
    ours = apart(plain.credit(Ledger.of(recut)), plain.credit(Ledger.of(found)))
    return Row("law a: an episode in two rows changes GRPO by", ours, change, "verl", "abs")


def with_torchrl(gae, found: list[Group], rng) -> list[Row]:
    import torch

    ledger = Ledger.of(found)
    values_T = rng.standard_normal(int(ledger.tokens[-1])).astype(np.float32)
    r, v, mask = with_observations(ledger, values_T)
    critic = estimated(lambda _: values_T, Level.TOKEN, Meaning.VALUE)
    ours = token_advantage(critic, earned=rewards(), gamma=GAMMA, lam=LAM).credit(ledger)

    def theirs(r, v, mask):
        lengths = (mask.cumsum(1) == mask.sum(1, keepdim=True)).float().argmax(1)
        done = torch.zeros_like(r, dtype=torch.bool)
        done[torch.arange(len(r)), lengths] = True
        after = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], 1)
        return gae(GAMMA, LAM, v[..., None], after[..., None], r[..., None], done[..., None])[0][..., 0]

    width = int(mask.sum(1).max())
    packed_r, packed_v, packed_m = (torch.zeros(len(r), width) for _ in range(3))
    for row in range(len(r)):
        keep = mask[row] > 0
        count = int(keep.sum())
        packed_r[row, :count], packed_v[row, :count], packed_m[row, :count] = r[row][keep], v[row][keep], 1
    same = packed(theirs(packed_r, packed_v, packed_m), packed_m)
    return [
        Row("torchrl GAE, observations taken out by hand", apart(ours, same), AGREE, "agree", "abs", bar=1.0),
        Row("law b: observation tokens change GAE by", 0.0, apart(same, packed(theirs(r, v, mask), mask)),
            "torchrl", "abs"),
    ]  # fmt: skip


def floor(found: list[Group], rng) -> Row:
    """The recursion as it is written in the paper, in C."""
    ledger = Ledger.of(found)
    values_T = rng.standard_normal(int(ledger.tokens[-1])).astype(np.float32)
    paid = np.zeros_like(values_T)
    paid[ledger.tokens[1:] - 1] = ledger.reward_N
    critic = estimated(lambda _: values_T, Level.TOKEN, Meaning.VALUE)
    ours = token_advantage(critic, earned=rewards(), gamma=GAMMA, lam=LAM).credit(ledger)
    loop = peers.c_gae(paid, values_T, ledger.row_tokens, GAMMA, LAM)()
    return Row("GAE as a loop", apart(ours, loop), AGREE, "agree", "abs", bar=1.0)


def main(arguments=None) -> None:
    given = options(__doc__, arguments)
    rng = np.random.default_rng(0)
    found = groups(rng)
    rows = [floor(found, rng)]
    left_out = []
    if (verl := peers.verl_module()) is not None:
        rows += with_verl(verl, found, rng)
    else:
        left_out.append("verl")
    if installed() is not None:
        rows += with_trl(found)
    else:
        left_out.append("trl")
    if (gae := peers.torchrl_function("generalized_advantage_estimate")) is not None:
        rows += with_torchrl(gae, found, rng)
    else:
        left_out.append("torchrl")
    if left_out:
        print(f"not installed, left out: {', '.join(left_out)}")
    finish(Path(__file__).stem, rows, given, left_out=left_out)


if __name__ == "__main__":
    main()
