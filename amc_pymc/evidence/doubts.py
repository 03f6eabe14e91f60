"""Flags of estimates that disagree with the pilot run, or are too uncertain."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.pilot import Pilot
from amc_pymc.flags import Flag, flag

__all__ = ["disagreements", "missed_mode", "uncertain"]

#: Standard errors, plus a margin in nats, by which estimates may differ without a flag.
_ERRORS, _NATS = 5.0, 0.1
#: Relative variance of the weights in one step of a climb.
_PER_STEP = 1.0 / 0.6 - 1.0


def uncertain(z: float, error: float) -> list[Flag]:
    """Return a flag if the error of a log evidence z is so large that it means little."""
    if z == -math.inf or error < 1.0:
        return []
    return [flag("large_error", error=error)]


def disagreements(z: float, error: float, pilot: Pilot) -> list[Flag]:
    """Return flags for evidence that the pilot run found and the estimate misses."""
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    flags = []
    ladder, adapted = pilot.ladder, pilot.adapted
    rough = math.sqrt(_PER_STEP * len(ladder.betas) / len(ladder.particles.x))
    if ladder.log_z - z > _ERRORS * math.hypot(error, rough) + _NATS:
        flags.append(flag("pilot_found_more", other=ladder.log_z))
    if adapted is not None and adapted.ess > 0.0:
        rough = 1.0 / math.sqrt(adapted.ess)
        if adapted.log_mean - z > _ERRORS * math.hypot(error, rough) + _NATS:
            flags.append(flag("mixture_found_more", other=adapted.log_mean))
    return flags


def missed_mode(z: float, error: float, pilot: Pilot, log_mass: float) -> list[Flag]:
    """Return a flag if modes outside the fitted mixture, with log evidence `log_mass`, exceed the error."""
    adapted = pilot.adapted
    if adapted is None or adapted.ess <= 0.0 or log_mass == -math.inf:
        return []
    if not math.isfinite(z) or not math.isfinite(error):
        return []
    total = float(np.logaddexp(adapted.log_mean, log_mass))
    rough = 1.0 / math.sqrt(adapted.ess)
    if total - z <= _ERRORS * math.hypot(error, rough) + _NATS:
        return []
    return [flag("missed_mode", total=total)]
