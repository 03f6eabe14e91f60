"""Flags of estimates that disagree with the pilot run or with chains, or are too uncertain.

Arguments are a log evidence z, its standard error, and what else is known.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.agreement import PER_STEP, clearly_more, error_of, share_error
from amc_pymc.evidence.from_chains import BridgedChains, missing_evidence
from amc_pymc.evidence.pilot import Pilot
from amc_pymc.flags import Flag, flag

__all__ = [
    "copies_missed",
    "covering_error",
    "disagreements",
    "missed_mode",
    "uncertain",
    "unlike_chains",
]

#: Standard errors by which estimates may differ without a flag.
_ERRORS = 5.0


def uncertain(z: float, error: float) -> list[Flag]:
    """Return a flag if the error is so large that the estimate means little."""
    return [flag("large_error", error=error)] if z != -math.inf and not error < 1.0 else []


def disagreements(z: float, error: float, pilot: Pilot) -> list[Flag]:
    """Return flags for evidence that the pilot run found and the estimate misses."""
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    ladder, adapted = pilot.ladder, pilot.adapted
    rough = math.sqrt(PER_STEP * len(ladder.betas) / len(ladder.particles.x))
    rough = math.hypot(rough, share_error(ladder))
    flags = []
    if clearly_more(ladder.log_z, rough, z, error, _ERRORS):
        flags.append(flag("pilot_found_more", other=ladder.log_z))
    if adapted is not None and clearly_more(adapted.log_mean, error_of(adapted), z, error, _ERRORS):
        flags.append(flag("mixture_found_more", other=adapted.log_mean))
    return flags


def missed_mode(z: float, error: float, pilot: Pilot, log_mass: float) -> list[Flag]:
    """Return a flag if modes outside the fitted mixture, with log evidence `log_mass`, exceed the error."""
    adapted = pilot.adapted
    if adapted is None or log_mass == -math.inf or not math.isfinite(z + error):
        return []
    total = float(np.logaddexp(adapted.log_mean, log_mass))
    more = clearly_more(total, error_of(adapted), z, error, _ERRORS)
    return [flag("missed_mode", total=total)] if more else []


def copies_missed(pilot: Pilot, draws: np.ndarray) -> list[Flag]:
    """Return a flag if chains (P, D) have not visited some copies of the main mode, by exchanges of labels or signs."""
    if pilot.images is None or not len(pilot.modes):
        return []
    missed = int((pilot.images.shares(draws, pilot.modes[0]) == 0.0).sum())
    copies = len(pilot.images.exchanges)
    return [flag("copies_missed", missed=missed, copies=copies)] if missed else []


def unlike_chains(z: float, error: float, bridged: BridgedChains | None) -> list[Flag]:
    """Return a flag if chains and their bridge give a clearly different evidence."""
    if bridged is None or not _apart(z, error, bridged):
        return []
    return [flag("chains_find_other", other=bridged.log_z, error=bridged.mcse)]


def covering_error(z: float, error: float, pilot: Pilot, bridged: BridgedChains | None) -> float:
    """Return a standard error whose 95 % interval covers clearly different results of pilot run and chains."""
    gap = missing_evidence(z, error, pilot) if math.isfinite(error) else 0.0
    covering: float = max(error, max(gap, _apart(z, error, bridged)) / 1.959964)
    return covering


def _apart(z: float, error: float, bridged: BridgedChains | None) -> float:
    """Return the difference from the estimate of chains in nats; 0 if errors explain it or chains are unreliable."""
    if bridged is None or not bridged.believed or not math.isfinite(z + error):
        return 0.0
    high, low = max(z, bridged.log_z), min(z, bridged.log_z)
    return clearly_more(high, error, low, bridged.mcse, _ERRORS)
