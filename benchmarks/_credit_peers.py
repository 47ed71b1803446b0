"""The same sums by others: a C loop as the floor, and what verl and torchrl make of the padded arrays they take."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from _harness import beside

__all__ = [
    "c_gae",
    "c_relative",
    "torchrl_function",
    "torchrl_gae",
    "torchrl_vectorised_gae",
    "verl_gae",
    "verl_grpo",
    "verl_module",
]

_C = r"""
void gae(const float *r, const float *v, const long *rows, long n, float gamma, float lam, float *out) {
    for (long row = 0; row < n; row++) {
        float next = 0, value = 0;
        for (long k = rows[row + 1] - 1; k >= rows[row]; k--) {
            next = r[k] + gamma * value - v[k] + gamma * lam * next;
            value = v[k];
            out[k] = next;
        }
    }
}
void relative(const float *outcome, const long *group, const long *rows, long n, long groups, float *work,
              float *out) {
    for (long g = 0; g < 2 * groups; g++) work[g] = 0;
    for (long row = 0; row < n; row++) { work[group[row]] += outcome[row]; work[groups + group[row]] += 1; }
    for (long row = 0; row < n; row++) {
        float credit = outcome[row] - work[group[row]] / work[groups + group[row]];
        for (long k = rows[row]; k < rows[row + 1]; k++) out[k] = credit;
    }
}
"""


@cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "credit_speed: the floor is a loop in C, and there is no C compiler (cc) here; install one"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "floor.c"), Path(folder, "floor.so")
        source.write_text(_C)
        subprocess.run(
            [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(built), str(source)], check=True
        )
        return ctypes.CDLL(str(built))


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def c_gae(rewards, values, rows, gamma, lam) -> Callable[[], np.ndarray]:
    """GAE over packed rows, one multiply and add after the other."""
    out, library = np.empty_like(values), _library()
    rows = rows.astype(np.int64)

    def run():
        library.gae(
            _at(rewards), _at(values), _at(rows), ctypes.c_long(len(rows) - 1), ctypes.c_float(gamma),
            ctypes.c_float(lam), _at(out),
        )  # fmt: skip
        return out

    return run


def c_relative(outcomes, group, rows) -> Callable[[], np.ndarray]:
    """Outcome minus group mean, for every token."""
    out, library = np.empty(int(rows[-1]), np.float32), _library()
    rows, group, outcomes = rows.astype(np.int64), group.astype(np.int64), outcomes.astype(np.float32)
    groups = int(group.max()) + 1
    work = np.zeros(2 * groups, np.float32)

    def run():
        library.relative(
            _at(outcomes), _at(group), _at(rows), ctypes.c_long(len(rows) - 1), ctypes.c_long(groups), _at(work),
            _at(out),
        )  # fmt: skip
        return out

    return run


def _padded(values, rows):
    import torch

    lengths = np.diff(rows)
    found = np.zeros((len(lengths), int(lengths.max())), np.float32)
    for row, length in enumerate(lengths):
        found[row, :length] = values[rows[row] : rows[row + 1]]
    return torch.from_numpy(found)


def _mask(rows):
    return _padded(np.ones(int(rows[-1]), np.float32), rows)


def verl_module():
    """verl's estimators, beside the environment since its dependencies are many."""
    if (folder := str(beside())) not in sys.path:
        sys.path.append(folder)
    if importlib.util.find_spec("verl") is None:
        return None
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    import verl.trainer.ppo.core_algos as found

    return found


def verl_gae(rewards, values, rows, gamma, lam):
    """None where verl is not installed."""
    if (verl := verl_module()) is None:
        return None
    r, v, mask = _padded(rewards, rows), _padded(values, rows), _mask(rows)
    return lambda: verl.compute_gae_advantage_return(r, v, mask, gamma, lam)


def verl_grpo(outcomes, group, rows, rewards):
    """The vectorised form, without division."""
    if (verl := verl_module()) is None:
        return None
    r, mask = _padded(rewards, rows), _mask(rows)
    return lambda: verl.compute_grpo_vectorized_outcome_advantage(r, mask, group, norm_adv_by_std_in_grpo=False)


def torchrl_function(name):
    if importlib.util.find_spec("torchrl") is None:
        return None
    import torchrl.objectives.value.functional as found

    return getattr(found, name)


def _torchrl_run(name, rewards, values, rows, gamma, lam):
    if (function := torchrl_function(name)) is None:
        return None
    import torch

    r, v = _padded(rewards, rows)[..., None], _padded(values, rows)[..., None]
    after = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], 1)
    done = torch.zeros_like(r, dtype=torch.bool)
    done[torch.arange(len(r)), torch.from_numpy(np.diff(rows) - 1)] = True
    return lambda: function(gamma, lam, v, after, r, done)


def torchrl_gae(rewards, values, rows, gamma, lam):
    """The loop over columns; None where torchrl is not installed."""
    return _torchrl_run("generalized_advantage_estimate", rewards, values, rows, gamma, lam)


def torchrl_vectorised_gae(rewards, values, rows, gamma, lam):
    """The convolution; None where torchrl is not installed."""
    return _torchrl_run("vec_generalized_advantage_estimate", rewards, values, rows, gamma, lam)
