"""Flags of estimates that are too uncertain, disagree with other runs, or rest on a prior that is not normalised.

Arguments are a log evidence z, its standard error, and what else is known.
"""

from __future__ import annotations

import math

from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pytensor.graph.traversal import toposort
from scipy.stats import t as student

from amc_pymc.evidence.bridge import bridge
from amc_pymc.evidence.chains import BridgedChains, missing_evidence
from amc_pymc.evidence.check import PER_STEP, clearly_more, error_of, share_error
from amc_pymc.evidence.pilot import Pilot
from amc_pymc.flags import Flag, flag
from amc_pymc.reading.graphs import interpreted_mode, log_densities, lowered
from amc_pymc.reading.particles.model_terms import layout_of, without_checks
from amc_pymc.reading.particles.prior import PriorDraws
from amc_pymc.rng import spawn_generators

if TYPE_CHECKING:
    from pymc import Model


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


#: Draws from each end, degrees of freedom of the reference, minimum effective draws and overlap for a reliable error.
_PRIOR_CHECK_DRAWS, _DOF, _FEWEST, _OVERLAP = 1000, 3.0, 25.0, 0.02
#: Standard errors, and nats, by which an integral may differ from one.
_PRIOR_CHECK_ERRORS, _NATS = 5.0, 0.02


def prior_flags(model: Model) -> list[Flag]:
    """Return flags for free variables whose own log density does not integrate to one under their own draws.

    For each pm.CustomDist the integral is estimated by a bridge between prior draws and draws in which an element of
    the variable is replaced by one from a Student t distribution.
    """
    custom = [rv for rv in model.free_RVs if _is_custom(rv, model)]
    if not custom:
        return []
    (rng,), layout = spawn_generators(0, 1), layout_of(model)
    x = PriorDraws.from_model(model, layout).draw(2 * _PRIOR_CHECK_DRAWS, rng)
    x = x[np.isfinite(x).all(axis=1)]
    flags, point = [], pt.vector("x", dtype="float64")
    for rv in custom:
        graphs = layout.substitute(log_densities(model, [rv]), model.value_vars, point)
        (graph,) = without_checks(lowered(graphs))
        fn = pytensor.function([point], graph, mode=interpreted_mode(), on_unused_input="ignore")
        value = model.rvs_to_values[rv]
        found = _integral(fn, x, layout.slices[value.name], layout.is_continuous(value.name), rng)
        if found is not None:
            flags.append(flag("prior_mismatch", variable=rv.name, integral=found))
    return flags


def _is_custom(rv: Any, model: Model) -> bool:
    others = [other for other in model.basic_RVs if other is not rv]
    nodes = toposort([rv], blockers=others)
    return any(isinstance(node.op, CustomDistRV | CustomSymbolicDistRV) for node in nodes)


def _integral(
    log_p: Any, x: np.ndarray, place: slice, continuous: bool, rng: np.random.Generator
) -> float | None:
    """Return the integral of a density over a part of the prior draws x (P, D) if it clearly is not one."""
    fitted, draws = x[: len(x) // 2, place], x[len(x) // 2 :]
    middle = np.median(fitted, axis=0)
    scale = 1.5 * np.median(np.abs(fitted - middle), axis=0) + 1e-3 * fitted.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0) if continuous else np.maximum(scale, 1.0)
    other = draws.copy()
    other[:, place] = middle + scale * rng.standard_t(_DOF, (len(draws), len(middle)))
    if not continuous:
        other[:, place] = np.rint(other[:, place])
    element = rng.integers(len(middle), size=len(draws))

    def works(points: np.ndarray) -> np.ndarray:
        z = points[:, place] - middle
        if continuous:
            log_q = student.logpdf(z / scale, _DOF) - np.log(scale)
        else:
            ends = student.cdf((np.abs(z) + np.array([[[-0.5]], [[0.5]]])) / scale, _DOF)
            log_q = np.log(np.maximum(ends[1] - ends[0], 1e-300))
        found = np.array([log_p(p) for p in points], float).reshape(len(points), -1)
        if found.shape != log_q.shape:  # not one number for each element
            return np.asarray(found.sum(axis=1) - log_q.sum(axis=1))
        return np.asarray((found - log_q)[np.arange(len(points)), element])

    ahead, behind = works(other), works(draws)
    possible = np.isfinite(behind)
    if possible.sum() < _FEWEST:
        return 0.0
    found = bridge(np.where(ahead < math.inf, ahead, -math.inf), behind[None, possible])
    if not (found.effective >= _FEWEST and found.overlap >= _OVERLAP):
        return None
    log_z = found.log_z + math.log(possible.mean())
    off = abs(log_z) > _PRIOR_CHECK_ERRORS * math.sqrt(found.variance) + _NATS
    off |= abs(found.tension) > _PRIOR_CHECK_ERRORS * found.tension_error + _NATS
    return math.exp(log_z) if off else None
