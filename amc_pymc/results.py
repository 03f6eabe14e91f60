"""Declarations of the statistics that samplers report."""

from __future__ import annotations

import numpy as np

__all__ = ["GIBBS_STATS", "METROPOLIS_STATS", "RACE_STATS", "SLICE_STATS"]

#: Statistics of all racing step methods, one scalar per draw: name -> (dtype, meaning). Counts are
#: sums over the transitions of the draw.
RACE_STATS: dict[str, tuple[type, str]] = {
    "race_rows": (np.float64, "rows read by races, proposals and control variates; may exceed N"),
    "race_rounds": (np.float64, "rounds of batches"),
    "race_delta": (np.float64, "promised error probability of a decision; 0 for exact decisions"),
    "race_audited": (np.float64, "decisions re-made on all rows"),
    "race_wrong": (np.float64, "audited decisions that all rows would have made otherwise"),
    "race_audit_rows": (np.float64, "rows read by audits"),
    "race_recentred": (np.float64, "times the control variate was moved in this chain so far"),
}
#: Further statistics of Metropolis steps.
METROPOLIS_STATS: dict[str, tuple[type, str]] = {
    "accept": (np.float64, "estimated acceptance probability, mean over the draw's transitions"),
    "accepted": (np.float64, "share of the draw's transitions that were accepted"),
    "scaling": (np.float64, "scale of the proposal most often used"),
    "race_quadrature": (
        np.float64,
        "largest change of an audited log ratio by twice the nodes of the quadrature so far",
    ),
}
#: Further statistics of Gibbs steps.
GIBBS_STATS: dict[str, tuple[type, str]] = {
    "race_moved": (np.float64, "share of the elements drawn that changed"),
    "race_arms_left": (np.float64, "states still racing after the first round, mean over races"),
}
#: Further statistics of slice steps.
SLICE_STATS: dict[str, tuple[type, str]] = {
    "race_decisions": (np.float64, "points compared with the slice's height"),
}
