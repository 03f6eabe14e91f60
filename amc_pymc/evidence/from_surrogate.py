r"""Evidence of a model with many rows from prior times the second-order expansion of the rows.

The surrogate :math:`s(x)` integrates to :math:`Z_s`: in closed form given the hyperparameters, over these by a
bridge, and neither reads rows. With draws from the surrogate and the remainder R of the log-likelihood,

.. math:: Z = \int p(x) L(x) dx = Z_s \operatorname{E}_{x \sim s} e^{R(x)},
    \qquad R = \log p + \log L - \log s.

Each draw of R reads all rows once, and few are needed where there are many rows for each parameter.
"""

from __future__ import annotations

import logging
import math
import time

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.evidence.annealing import resample
from amc_pymc.evidence.bridge import bridge_draws, variance_of_mean
from amc_pymc.evidence.mcmc import make_kernel
from amc_pymc.evidence.model import Tally
from amc_pymc.evidence.results import (
    Answer,
    Evidence,
    PosteriorDraws,
    add_posterior,
    effective_size,
    finished,
    uncertain,
)
from amc_pymc.logweights import log_mean_exp
from amc_pymc.reading.particles.densities import ParticleDensities, extract_particles
from amc_pymc.reading.particles.prior import check_evidence_defined
from amc_pymc.results import declared_dataset, pareto_k
from amc_pymc.results.tables import ARMS
from amc_pymc.rng import spawn_generators
from amc_pymc.steps.surrogate_posterior import SurrogatePosterior, surrogate_posterior

if TYPE_CHECKING:
    from pymc import Model


_log = logging.getLogger("amc_pymc")
#: Number of rows from which the surrogate is tried.
FEWEST_ROWS = 5_000
#: Chains on the surrogate, their draws, and numbers of draws at which the remainder is measured at first and at most.
_CHAINS, _DRAWS, _FIRST, _MOST = 4, 1_000, 100, 2_000
#: Numbers of rows that are read to have distinct draws of the posterior, and of these that are always enough.
_READ, _ENOUGH = 50_000_000, 400
#: Number of prior draws from which other modes are searched.
_STARTS = 8
#: Largest standard deviation of the remainder in nats; where it is above the second number, largest Pareto k of exponentials.
_SPREAD, _NARROW, _TAIL = 1.0, 0.1, 0.7
#: Share of the error that the bridge over hyperparameters may have, by variance.
_BRIDGE = 0.5
#: Largest cost of a stage of the bridge, in evaluations of the surrogate.
_AFFORDABLE = 200_000.0
_UNBIASED = (
    "no, but consistent as draws from the surrogate become more; modes far from its own are missed"
)


class _Correction(NamedTuple):
    """Draws x (K, D), their log prior and log likelihood (2, K), remainders (K,), and log E[exp R] with its error."""

    x: np.ndarray
    terms: np.ndarray
    remainders: np.ndarray
    log_mean: float
    error: float

    @property
    def close(self) -> bool:
        """Whether the surrogate is close to the posterior."""
        if not math.isfinite(self.error):
            return False
        spread, k = float(np.std(self.remainders)), pareto_k(self.remainders)
        _log.debug("The remainder has sd %.2g nats, and its tail k = %.2g.", spread, k)
        return spread <= _SPREAD and not (spread > _NARROW and k > _TAIL)


def evidence_from_surrogate(
    model: Model,
    *,
    target: float,
    draws: int,
    chains: int,
    words: list[int],
    progressbar: bool,
) -> xr.DataTree | None:
    """Return the evidence of a model with many rows; None if its surrogate is not close.

    Parameters
    ----------
    model : pm.Model
    target : float
        Standard error of log Z, in nats.
    draws, chains : int
        Posterior draws in the result.
    words : list of int
        Seed.
    progressbar : bool
    """
    begin = time.process_time()
    check_evidence_defined(model)
    (rng,) = spawn_generators(words, 1)
    surrogate = surrogate_posterior(model, progressbar)
    if surrogate is None:
        return None
    densities, tally = extract_particles(model, check=False), Tally()
    if densities.layout.names != surrogate.layout.names:
        return None
    passes = math.ceil(surrogate.passes)
    tally.add("pilot", np.array([passes, 0, 0]))
    with tally.stage("search"):
        if surrogate.has_other_modes(densities.draw_prior(_STARTS, rng), rng):
            _log.info("The posterior may have several modes, which are searched.")
            return None
    with tally.stage("arms"):
        first = _remainder(surrogate, densities, surrogate.chains(_CHAINS, _FIRST // _CHAINS, rng))
    if not first.close:
        return None
    x = surrogate.chains(_CHAINS, _DRAWS, rng)
    log_z, mcse = _normaliser(surrogate, x, math.sqrt(_BRIDGE) * target, rng)
    if not mcse <= target:
        _log.debug("The bridge over hyperparameters has an error of %.2g nats.", mcse)
        return None
    left = math.sqrt(target**2 - mcse**2)
    wanted = 1.2 * _FIRST * (first.error / left) ** 2 if left else math.inf
    wanted = max(wanted, min(draws * chains, max(_ENOUGH, _READ // surrogate.n_rows)))
    with tally.stage("arms"):
        number = math.ceil(min(wanted, _MOST) / _CHAINS)
        places = np.linspace(0, _DRAWS - 1, number).round().astype(int)
        found = _remainder(surrogate, densities, x[:, places])
    if not found.close or not found.error <= left:
        return None
    error = math.hypot(mcse, found.error)
    z = log_z + found.log_mean
    numbers = Evidence(log_evidence=z, log_evidence_mcse=error, pareto_k=pareto_k(found.remainders))
    numbers |= {"log_evidence_iv": z, "log_evidence_iv_mcse": error, "ess": effective_size(error)}
    tree = xr.DataTree()
    tree["arms"] = xr.DataTree(_arms(numbers, found, tally))
    with tally.stage("posterior"):
        chosen = resample(found.remainders, draws * chains, rng)  # copies are adjacent
        source = "sampling importance resampling from the surrogate"
        drawn = PosteriorDraws(found.x[chosen], len(np.unique(chosen)), source)
        _, flags = add_posterior(tree, model, densities, drawn, chains, found.terms[:, chosen])
    method = f"prior times expansion of rows, corrected at {len(found.x)} draws"
    attrs = {"weights": "equal", "unbiased": _UNBIASED, "method": method}
    answer = Answer(tree, numbers, flags + uncertain(z, error), attrs)
    return finished(answer, model, "estimate_evidence", tally, begin)


def _normaliser(
    surrogate: SurrogatePosterior, x: np.ndarray, target: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the logarithm of the surrogate's integral and its standard error, given draws (C, N, D) from it."""
    if not surrogate.n_dim:
        return float(surrogate.values(np.empty((1, 0)))[1, 0]), 0.0
    phis, kernel = surrogate.hyperparameters(x), make_kernel("hmc")
    *_, stages = bridge_draws(
        surrogate, phis, kernel, rng, target=target, budget=lambda cost: cost <= _AFFORDABLE
    )
    last = stages[-1]
    return last.log_z, last.mcse if last.believed else math.inf


def _remainder(
    surrogate: SurrogatePosterior, densities: ParticleDensities, chains: np.ndarray
) -> _Correction:
    """Measure the remainder at draws of chains (C, N, D)."""
    x = chains.reshape(-1, chains.shape[2])
    terms = densities.values(x)
    remainders = terms.sum(axis=0) - surrogate.log_density(x)
    if not np.isfinite(remainders).all():
        return _Correction(x, terms, remainders, -math.inf, math.inf)
    log_mean = float(log_mean_exp(remainders))
    variance, _ = variance_of_mean(np.exp(remainders - log_mean).reshape(len(chains), -1))
    return _Correction(x, terms, remainders, log_mean, math.sqrt(variance))


def _arms(numbers: Evidence, found: _Correction, tally: Tally) -> xr.Dataset:
    z, error = numbers.estimate
    columns = {
        "log_evidence": [z],
        "log_evidence_mcse": [error],
        "draws": [len(found.x)],
        "cost": [tally.cost],
        "weight": [1.0],
        "pareto_k": [numbers["pareto_k"]],
    }
    out = declared_dataset(ARMS, columns, {"arm": ["surrogate"]})
    out.attrs["left_out"] = "all others: prior times the rows' expansion is close to the posterior"
    return out
