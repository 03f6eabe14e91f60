"""Statistics of the rounds of a likelihood-free run."""

from __future__ import annotations

import numpy as np

from amc_pymc.abc_tree.accepted import Accepted, effective, effective_of_first
from amc_pymc.abc_tree.history import History
from amc_pymc.simulators.kernels import accepted

__all__ = ["prior_acceptance", "round_statistics"]


def round_statistics(
    history: History, found: Accepted, distance: np.ndarray
) -> dict[str, np.ndarray]:
    """Return arrays (R,) by name, with one number for each round.

    Parameters
    ----------
    history : History
    found : Accepted
        Simulations accepted in the end, by `distance` (N,).
    """
    rounds, hit = history.rounds, _hits(history, found.tolerance, distance)
    columns = {
        "tolerance": [r.tolerance for r in rounds],
        "boxes": [sum(m.partition.boxes for m in r.proposal.members) for r in rounds],
        "simulations": [len(r.u) for r in rounds],
        "acceptance": [float(accepted(r.simulated.distance, r.tolerance).mean()) for r in rounds],
        "final_acceptance": [float(h.mean()) for h in hit],
        "ess": [effective(r.log_ratio[h]) for r, h in zip(rounds, hit, strict=True)],
        "ess_so_far": _effective_so_far(found, history.number[found.index], len(rounds)),
        "gain": [r.proposal.gain for r in rounds],
        "failed": [int((~np.isfinite(r.simulated.distance)).sum()) for r in rounds],
    }
    return {name: np.array(column) for name, column in columns.items()}


def _hits(history: History, tolerance: float, distance: np.ndarray) -> list[np.ndarray]:
    """Return which simulations of each round are accepted."""
    sizes = [len(r.u) for r in history.rounds]
    return np.split(accepted(distance, tolerance), np.cumsum(sizes)[:-1])


def _effective_so_far(found: Accepted, number: np.ndarray, n_rounds: int) -> np.ndarray:
    """Return the effective sample sizes (R,) of the accepted simulations of all rounds up to each one."""
    order = np.argsort(number, kind="stable")
    ess = np.append(0.0, effective_of_first(found.weight[order]))
    so_far: np.ndarray = ess[np.searchsorted(number[order], np.arange(n_rounds), side="right")]
    return so_far


def prior_acceptance(history: History, tolerance: float, distance: np.ndarray) -> float:
    """Return the acceptance probability of rejection sampling, from all rounds weighted by their gains."""
    hit = _hits(history, tolerance, distance)
    gains = np.array([r.proposal.gain * len(r.u) for r in history.rounds])
    means = [
        float((np.exp(r.log_ratio) * h).mean()) for r, h in zip(history.rounds, hit, strict=True)
    ]
    return float(gains @ means / gains.sum())
