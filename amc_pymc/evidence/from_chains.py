"""Evidence from Markov chains, for posteriors that no fitted mixture approximates well enough."""

from __future__ import annotations

import math

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from amc_pymc.evidence.agreement import clearly_more, error_of, less_than_climb
from amc_pymc.evidence.chains import Chains, ChainSettings, run_chains
from amc_pymc.evidence.draws_bridge import Stage, bridge_draws, tension_of
from amc_pymc.evidence.mcmc import Kernel, Path
from amc_pymc.evidence.pilot import Pilot

__all__ = ["BridgedChains", "bridge_chains", "missing_evidence"]

#: Fractions of the target error allotted to disagreement of chains and to the bridge; their squares sum to one.
_OF_TARGET = (0.6, 0.8)
#: Largest acceptable R-hat of the chains.
_R_HAT = 1.05


class BridgedChains(NamedTuple):
    """Chains, and the bridge between them and a Gaussian.

    Attributes
    ----------
    chains : Chains
    stages : list of Stage
        Stages of the bridge; the last one is the final estimate.
    """

    chains: Chains
    stages: list[Stage]

    @property
    def log_z(self) -> float:
        """Natural logarithm of the evidence."""
        return self.stages[-1].log_z

    @property
    def mcse(self) -> float:
        """Standard error of `log_z`, including a term for disagreement between chains."""
        return math.hypot(self.stages[-1].mcse, max(self.chains.r_hat - 1.0, 0.0))

    @property
    def cost(self) -> float:
        """Evaluations; a gradient counts as two."""
        return 2.0 * self.chains.gradients + sum(float(s.cost) for s in self.stages)

    @property
    def mixed(self) -> bool:
        """Whether the chains agree."""
        return self.chains.r_hat <= _R_HAT

    @property
    def believed(self) -> bool:
        """Whether the chains have mixed and the bridge is reliable."""
        return self.mixed and self.stages[-1].believed and tension_of(self.stages) == 0.0

    def answers(self, target: float | None, pilot: Pilot) -> bool:
        """Whether the result is reliable, meets the target, and is not below the estimate of the pilot run."""
        wanted = math.inf if target is None else target
        good = self.believed and self.mcse <= wanted
        return good and missing_evidence(self.log_z, self.mcse, pilot) == 0.0


def bridge_chains(
    path: Path,
    pilot: Pilot,
    kernel: Kernel,
    rng: np.random.Generator,
    *,
    target: float | None,
    budget: Callable[[float], bool],
    settings: ChainSettings | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> BridgedChains:
    """Run chains from the particles of a pilot run, and bridge their draws with a Gaussian.

    Parameters
    ----------
    path : Path
        Path from the prior to the posterior.
    pilot : Pilot
    kernel : Kernel
        Reversible kernel for annealing between Gaussian and posterior.
    rng : numpy.random.Generator
    target : float or None
        Standard error of log Z at which to stop.
    budget : callable
        Function that returns whether the cost of a further part of the chains, or an annealing stage, is affordable.
    settings : ChainSettings, optional
    report : callable, optional
        Function called with a text before each part.

    Returns
    -------
    BridgedChains
    """
    settings = settings or ChainSettings()
    if target is not None:
        settings = replace(settings, r_hat=min(settings.r_hat, 1.0 + _OF_TARGET[0] * target))
        target = _OF_TARGET[1] * target
    chains = run_chains(path, pilot.ladder.particles.x, rng, settings, budget, report)
    *_, stages = bridge_draws(
        path, chains.draws, kernel, rng, target=target, budget=budget,
        report=lambda steps: report(f"bridge of {steps} steps"),
    )  # fmt: skip
    return BridgedChains(chains, stages)


def missing_evidence(log_z: float, mcse: float, pilot: Pilot) -> float:
    """Return by how many nats a pilot run exceeds an estimate of the log evidence; 0 if the errors explain it.

    Annealing from the prior does not depend on a fitted reference, so evidence that only it finds is missing from the
    reference. Lower values do not indicate a problem: they are common if the pilot run made too few moves.
    """
    if not math.isfinite(log_z):
        return 0.0
    gap = less_than_climb(log_z, mcse, pilot.ladder)
    if pilot.adapted is None:
        return gap
    return max(gap, clearly_more(pilot.adapted.log_mean, error_of(pilot.adapted), log_z, mcse))
