r"""Choice of the next proposal from all simulations so far.

Trees are grown on subsets of the history, and their rates are shrunk towards those of parent boxes. Mixtures of
Student t densities are fitted to subsets as well. Proposals are then judged by accepted simulations that they were not
fitted to. With weights w of these, the effective draws per simulation are those of the first batch, which is uniform
on the cube, times

.. math:: \frac{\sum_i w_i \pi(u_i)}{\sum_i w_i \pi(u_i) / q(u_i)}.

This criterion chooses the exponent of :math:`q_k \propto \pi_k \hat\mu_k^\gamma`, then the shares of boxes and
kernels, and estimates the gain of the batch. The prior density :math:`\pi` need only be known up to a factor.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from amc_pymc.arguments import boolean, positive_int, positive_or_none
from amc_pymc.likelihood_free.adjust import regress_near
from amc_pymc.likelihood_free.history import History, Round, next_tolerance
from amc_pymc.likelihood_free.partition import Partition, shrunk_rates
from amc_pymc.likelihood_free.problem import Problem, Simulated, accepted, student_kernel
from amc_pymc.likelihood_free.proposal import (
    Boxes,
    Kernels,
    Proposal,
    best_proposal,
    principal_axes,
    prior_proposal,
    to_axes,
    to_normal,
)
from amc_pymc.likelihood_free.trees import Cart, Dyadic, Partitioner
from amc_pymc.logweights import relative, systematic
from amc_pymc.mixtures import StudentTMixture, fit_student_t_mixture

#: Candidate exponents of rates; 1/2 is optimal for known rates, larger ones for smoothed rates.
_EXPONENTS = (0.5, 0.65, 0.8, 1.0)
#: Fraction of the history that a tree is grown on.
_BAG = 0.7
#: Minimum accepted simulations for judging a proposal.
_JUDGES = 10
#: Prior weights of boxes and of kernels in the choice of shares, in effective simulations.
_PULL_BOXES, _PULL_KERNELS = 1.0, 0.5
#: Share below which kernels are dropped, and maximum share of all kernels.
_LEAST_SHARE, _MOST_LOCAL = 0.02, 0.9
#: Weight of the last batch's gain, in effective simulations.
_STEADINESS = 10.0
#: Log density below which a density counts as zero.
_ZERO = -1e100
#: Numbers of components of the fitted mixtures, and powers that they are flattened to.
_COMPONENTS, _POWERS = (1, 3, 6), (0.5, 0.75)
#: Degrees of freedom of the fitted mixtures, and of the flattened ones.
_FITTED_DOF, _DRAWN_DOF = 10.0, 8.0
#: Maximum EM iterations, and the gain in log density at which they end.
_ITERATIONS, _ENOUGH = 8, 1e-2
#: Number of parts of the points; each mixture is fitted to all but one of them.
_PARTS = 2
#: Maximum number of points that mixtures are fitted to.
_FITTED = 1000
#: Kernel value that simulations must exceed to be used for fitting.
_NEAR = 0.02
#: Multiple of k (D + 1) in the number of effective points required for k components.
_POINTS = 1.5

#: Share of the kernel that is ahead of the tolerance, and its degrees of freedom.
_AHEAD, _AHEAD_DOF = 0.3, 4.0
#: Mean ratio of standard deviations below which it is used, factor of its covariance, and fraction of the covariance of
#: accepted simulations that is added to it.
_NARROWER, _WIDER, _RIDGE = 0.2, 3.0, 1e-10

PartitionName = Literal["forest", "cart", "dyadic"]
Utility = Literal["ess", "efficiency", "posterior", "kl"]
#: Partitions of a proposal by name. In a forest random cuts keep weights even; the best cuts find narrow posteriors
#: with few simulations, but are not worth their cost with many.
_PARTITIONS: dict[str, tuple[Partitioner, ...]] = {
    "forest": (Cart(random_beyond=0),) * 2 + (Cart(random_beyond=10_000),) * 2,
    "cart": (Cart(),),
    "dyadic": (Dyadic(),),
}


@dataclass(frozen=True, kw_only=True)
class TreeProposal:
    r"""Options for how :func:`sample_abc_tree` learns where to simulate.

    The defaults suit most problems. Weights are exact for all options; these affect the number of effective draws,
    not their distribution.

    Parameters
    ----------
    partition : {"forest", "cart", "dyadic"}, callable or tuple of callables, default "forest"
        Boxes: two extremely randomised regression trees and two CART trees (at most 1000 leaves each) on parts of
        the simulations, all four randomised for many simulations; one CART tree; dyadic halving; or your own
        :class:`amc_pymc.likelihood_free.Partitioner`. Every other of several trees is cut along principal axes of the
        accepted simulations.
    local : bool, optional
        Whether to draw also from mixtures of Student t kernels, which follow posteriors that are narrow in oblique
        directions. Their share of each batch is learned from earlier simulations and at most 0.9. If the posterior is far
        narrower than the accepted simulations, 0.3 of a batch is from a kernel where a regression on the summary
        statistics expects it. Only, and by default, with ``utility="ess"``.
    utility : {"ess", "efficiency", "posterior", "kl"}, default "ess"
        Objective of the proposals given acceptance probabilities. "ess", effective draws per simulation:
        :math:`q_k \propto \pi_k \mu_k^\gamma`, with :math:`\gamma` chosen by prediction between 1/2, which is
        optimal for known probabilities, and 1. The others are :math:`\omega^2`, :math:`\omega^1` and
        :math:`\omega^3` of the paper; see :func:`amc_pymc.likelihood_free.best_proposal`.
    prior_share : float, default 0.05
        Share of each batch drawn from the prior, in (0, 1]. No weight exceeds 1 / prior_share times the gain. 1 is rejection
        sampling (Pritchard et al. 1999, doi:10.1093/oxfordjournals.molbev.a026091), a baseline.
    batch_size : int, optional
        Simulations per batch. Default: 2 % of the budget first, then 40 % of all previous simulations.
    accepts : int, default 1000
        Simulations that the next tolerance accepts, at most 3 % of those so far or 30, whichever is more. The final
        tolerance aims at half as many effective draws, at most 1.5 % of all simulations and at least 30. To accept
        more, set `tolerance` of :func:`sample_abc_tree`.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; the error names it and its value.

    References
    ----------
    O'Hagan, Kim & Rockova, Tree bandits for generative Bayes.
    Alsing, Wandelt & Feeney (2018), Optimal proposals for approximate Bayesian computation, arXiv:1808.06040.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> amc.TreeProposal(partition="cart", prior_share=0.1).local
    True
    >>> amc.TreeProposal(prior_share=2.0)
    Traceback (most recent call last):
        ...
    ValueError: prior_share must be between 0 and 1, got 2.0.
    """

    partition: PartitionName | Partitioner | tuple[Partitioner, ...] = "forest"
    local: bool | None = None
    utility: Utility = "ess"
    prior_share: float = 0.05
    batch_size: int | None = None
    accepts: int = 1000

    def __post_init__(self) -> None:
        given = self.partition
        for own in given if isinstance(given, tuple) else (given,):
            if isinstance(own, str) or not callable(own):
                one_of("partition", own, PartitionName, "or a callable")
        one_of("utility", self.utility, Utility)
        allowed = self.utility == "ess"
        if self.local is None:
            object.__setattr__(self, "local", allowed)
        elif boolean("local", self.local) and not allowed:
            raise ValueError(
                f"local=True needs utility='ess', got utility={self.utility!r}; leave one of them out."
            )
        if positive_or_none("prior_share", self.prior_share, 1.0, closed=True) is None:
            raise TypeError("prior_share must be a number between 0 and 1, got None.")
        positive_int("accepts", self.accepts)
        if self.batch_size is not None:
            positive_int("batch_size", self.batch_size)

    @property
    def partitioners(self) -> tuple[Partitioner, ...]:
        """One partitioner for each partition of a proposal."""
        given = self.partition
        if isinstance(given, str):
            return _PARTITIONS[given]
        return given if isinstance(given, tuple) else (given,)


def one_of(name: str, value: object, choices: object, more: str = "") -> None:
    """Raise a ValueError if `value` is not among the choices of a Literal type."""
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        told = f"{', '.join(map(repr, known))} {more}".strip()
        raise ValueError(f"{name} must be one of {told}, got {value!r}.")


def rounds(
    problem: Problem,
    simulate: Callable[[np.ndarray, int], Simulated],
    sizes: Sequence[int],
    generators: Sequence[np.random.Generator],
    proposal: TreeProposal,
    tolerance: float | None = None,
    learn_distance: Callable[[History, np.random.Generator], np.ndarray] | None = None,
    observed: np.ndarray | None = None,
) -> Iterator[History]:
    """Simulate batch by batch, each drawn from a proposal learned from earlier batches.

    Parameters
    ----------
    problem : Problem
    simulate : callable
        Maps points (n, D) of the unit cube and the batch number to n simulations.
    sizes : sequence of int
        Sizes of the batches.
    generators : sequence of numpy.random.Generator
        One for each batch.
    proposal : TreeProposal
    tolerance : float, optional
        Tolerance at which lowering ends.
    learn_distance : callable, optional
        Maps the history before a batch to new distances (N,), which replace the old ones. The distance is
        fixed before the batch is drawn, like the proposal.
    observed : array (S,), optional
        Summary statistics of the data, for proposals that are ahead of the tolerance; see :func:`ahead`.

    Yields
    ------
    History
        The same object each time, extended by one batch.

    Raises
    ------
    ValueError
        After the last batch, if the prior density is zero at all simulations.
    """
    history, last = History(), math.inf
    for b, (size, rng) in enumerate(zip(sizes, generators, strict=True)):
        chosen = prior_proposal(problem.n_dim)
        if b > 0:
            if learn_distance is not None:
                history.score_again(learn_distance(history, rng.spawn(1)[0]))
                last = math.inf  # the new distance has other units
            last = next_tolerance(
                history.distance, last, accepts=proposal.accepts, lowest=tolerance,
                log_density=history.log_density,
            )  # fmt: skip
            if proposal.prior_share < 1.0:
                chosen = next_proposal(history, last, proposal, rng, observed)
        u, log_ratio, x = chosen.draw(size, rng)
        log_density = problem.log_density(u)
        if log_density is not None:
            log_density = np.where(log_density < _ZERO, -math.inf, log_density)
            log_ratio = log_ratio + log_density
        found = simulate(u, b)
        history.add(Round(chosen, last, u, log_ratio, log_density, found, x))
        yield history
    if len(history) and not (history.log_density > -math.inf).any():
        factors = getattr(problem, "fallback", {})
        told = "".join(f" {name!r} ({reason})" for name, reason in factors.items())
        raise ValueError(
            f"the prior density is zero at all {len(history):,} simulations. Check these factors:{told or ' none'}."
        )


class _Grown(NamedTuple):
    """A partition, rates (K,) of its boxes, its axes, and which simulations (n,) it was not grown on."""

    partition: Partition
    rates: np.ndarray
    axes: np.ndarray | None
    unseen: np.ndarray

    def boxes(self, utility: str, exponent: float) -> Boxes:
        volumes = self.partition.volumes
        if utility == "ess":
            q = volumes * self.rates**exponent
            q /= q.sum()
        else:
            q = best_proposal(volumes * self.rates, volumes, utility)
        return Boxes(self.partition, q, self.axes)


def next_proposal(
    history: History,
    tolerance: float,
    options: TreeProposal,
    rng: np.random.Generator,
    observed: np.ndarray | None = None,
) -> Proposal:
    """Return the mixture of boxes and kernels that is best for unseen simulations near the data.

    It is the prior while no simulation was close.

    Parameters
    ----------
    history : History
    tolerance : float
        inf accepts all finite distances.
    options : TreeProposal
    rng : numpy.random.Generator
    observed : array (S,), optional
        Summary statistics of the data.

    Returns
    -------
    Proposal
    """
    u, partitioners, share = history.u, options.partitioners, options.prior_share
    near = student_kernel(history.distance, tolerance) * history.density
    hit = accepted(history.distance, tolerance) & (history.log_density > -math.inf)
    before = history.rounds[-1].proposal
    axes, turned = None, u
    if len(partitioners) > 1 and hit.sum() > 2 * u.shape[1]:
        axes = principal_axes(u[hit], relative(history.log_worth[hit]))
        turned = to_axes(history.x, axes)
    grown = []
    for t, partitioner in enumerate(partitioners):
        v, own = (turned, axes) if t % 2 else (u, None)
        last = before.members[t].partition if len(before.members) == len(partitioners) else None
        bag = rng.random(len(v)) < _BAG
        chosen = v[bag], near[bag]
        partition = partitioner(*chosen, last, rng)
        rates = shrunk_rates(partition, *chosen)
        if rates.sum() > 0.0:
            grown.append(_Grown(partition, rates, own, ~bag))
    if not grown:
        return prior_proposal(u.shape[1])
    unseen = np.stack([g.unseen for g in grown])
    judges = np.flatnonzero(hit & unseen.any(axis=0))
    exponents = _EXPONENTS if options.utility == "ess" else (0.5,)
    forests = [tuple(g.boxes(options.utility, e) for g in grown) for e in exponents]
    farther = ahead(history, hit, observed) if options.local and observed is not None else None
    if len(judges) < _JUDGES:
        return _with_kernel(Proposal(forests[0], share, 1.0), farther)
    # The worth of simulations is their weight times the prior density, up to a factor.
    worth = _worth((history.log_worth + history.log_density)[judges])
    places = [member.find(u[judges]) for member in forests[0]]  # the same for all exponents
    boxes = [_unseen_density(members, places, unseen[:, judges]) for members in forests]
    best = int(np.argmin([(worth / (share + (1.0 - share) * b)).sum() for b in boxes]))
    density = boxes[best]
    kernels: tuple[Kernels, ...] = ()
    shares: tuple[float, ...] = ()
    if options.local:
        near = _worth(history.log_worth) * np.where(near > _NEAR, near, 0.0)
        fits, part = fit_kernels(u, near, rng)
        if fits:
            kernels, shares, density = _beside(density, fits, part[judges], u[judges], worth, share)
    inverse = worth / (share + (1.0 - share) * density)
    gain = _steadied(float(worth.sum()), inverse, before.gain)
    return _with_kernel(Proposal(forests[best], share, gain, kernels, shares), farther)


def _worth(log_weight: np.ndarray) -> np.ndarray:
    """Return weights (n,) relative to the largest; single precision removes effects of a common factor."""
    return relative(log_weight).astype(np.float32).astype(float)


def _unseen_density(
    members: Sequence[Boxes], places: Sequence[np.ndarray], unseen: np.ndarray
) -> np.ndarray:
    """Return the mean density (m,) at points in boxes (T, m) of the partitions not grown on them, by mask (T, m)."""
    out = np.zeros(unseen.shape[1])
    for member, place, new in zip(members, places, unseen, strict=True):
        out[new] += member.heights[place[new]]
    return out / unseen.sum(axis=0)


def _steadied(total: float, inverse: np.ndarray, last: float) -> float:
    """Return the estimated gain, shrunk on the log scale towards that of the last batch.

    A batch with an overestimated gain would have too much weight.
    """
    cost = float(inverse.sum())
    known = cost**2 / float(inverse @ inverse)
    log = known * math.log(total / cost) + _STEADINESS * math.log(last)
    return max(1.0, math.exp(log / (known + _STEADINESS)))


# --- kernels --------------------------------------------------------------------------------------


def fit_kernels(
    u: np.ndarray, worth: np.ndarray, rng: np.random.Generator
) -> tuple[list[tuple[Kernels, ...]], np.ndarray]:
    r"""Fit Student t mixtures of several sizes to weighted points, each to all but one part of them, and flatten them.

    A component :math:`\pi_k N(m_k, S_k)` becomes

    .. math:: (\pi_k N(x; m_k, S_k))^\gamma \, N(x; 0, I)^{1 - \gamma},

    a normal with precision :math:`\gamma S_k^{-1} + (1 - \gamma) I`, whose integral is the new weight. With
    :math:`\gamma = 1/2` and well separated components it is the proposal with most effective draws (Alsing, Wandelt &
    Feeney 2018, arXiv:1808.06040, for a posterior known up to a factor). Scale matrices are taken as covariances.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    worth : array (n,)
        Worth of each point: weight times kernel value.
    rng : numpy.random.Generator

    Returns
    -------
    fits : list of tuple of Kernels
        One for each feasible number of components and each power; empty if there are too few points for a single
        component. Kernels k of a fit were not fitted to part k.
    part : array of int (n,)
        Part that each simulation belongs to.
    """
    chosen = np.flatnonzero(worth > 0.0)
    worth = worth[chosen]
    if len(chosen) > _FITTED:
        drawn, counts = np.unique(systematic(worth, _FITTED, rng), return_counts=True)
        chosen, worth = chosen[drawn], counts.astype(float)
    x = to_normal(u[chosen])
    part = rng.permutation(np.arange(len(u)) % _PARTS)
    seen = [part[chosen] != number for number in range(_PARTS)]
    effective = min(w.sum() ** 2 / max(float(w @ w), 1e-300) for w in (worth[own] for own in seen))
    out = []
    for k in _COMPONENTS:
        if effective < _POINTS * k * (u.shape[1] + 1) + 2.0:
            break
        found = [
            fit_student_t_mixture(
                x[own], np.log(worth[own]), n_components=k, rng=rng, dof=_FITTED_DOF,
                n_iter=_ITERATIONS, tolerance=_ENOUGH,
            )
            for own in seen
        ]  # fmt: skip
        for power in _POWERS:
            out.append(tuple(Kernels(_flattened(mixture, power)) for mixture in found))
    return out, part


def ahead(
    history: History, hit: np.ndarray, observed: np.ndarray
) -> tuple[Kernels, np.ndarray] | None:
    r"""Return a kernel where a linear regression on summary statistics expects the posterior.

    Tolerances fall by a factor in each batch, so a posterior of a tiny part of the prior is reached late. If the
    parameters of accepted simulations are nearly a function of their summary statistics, the regression

    .. math:: x_i = m + B^\top (s_i - s_{\mathrm{obs}}) + r_i

    shows the posterior near :math:`m`, with the covariance of the residuals :math:`r_i` (Beaumont, Zhang & Balding 2002,
    doi:10.1093/genetics/162.4.2025), although no simulation was there. Where the relation is not linear, residuals are
    larger, and so is the kernel, a Student t density; the next batch repeats the regression from there.

    Parameters
    ----------
    history : History
    hit : array of bool (N,)
        Accepted simulations.
    observed : array (S,)

    Returns
    -------
    tuple or None
        The kernel, and points (n, D) of the cube where the regression expects the posterior. None if there are too few
        accepted simulations, or the residuals are not far narrower than these: the geometric mean of the ratios of
        standard deviations along principal axes must once be below a fifth.
    """
    summaries, d = history.summaries, history.rounds[0].u.shape[1]
    near = None if summaries is None else summaries[hit]
    fit = regress_near(history.x[hit], near, observed, np.ones(hit.sum()))
    if fit is None:
        return None
    before, after = (np.cov(x.T).reshape(d, d) for x in (fit.original, fit.x))
    after += np.diag(_RIDGE * np.diag(before))
    ratio = 0.5 * (np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1]) / d
    if not (history.uneven or ratio < math.log(_NARROWER)):
        return None
    root = np.linalg.cholesky(_WIDER * after)
    kernel = Kernels(StudentTMixture(np.ones(1), fit.x.mean(axis=0)[None], root[None], _AHEAD_DOF))
    return kernel, fit.u


def _with_kernel(proposal: Proposal, found: tuple[Kernels, np.ndarray] | None) -> Proposal:
    """Return a proposal that draws a fixed share from a kernel, with the gain that is expected of it."""
    if found is None:
        return proposal
    kernel, expected = found
    shares = (*((1.0 - _AHEAD) * s for s in proposal.kernel_shares), _AHEAD)
    out = replace(proposal, kernels=(*proposal.kernels, kernel), kernel_shares=shares)
    return replace(out, gain=max(out.gain, float(np.median(out.density(expected)))))


def _flattened(mixture: StudentTMixture, power: float) -> StudentTMixture:
    """Return a power of a mixture times the complementary power of the normal prior."""
    precision = np.linalg.inv(mixture.scale_matrices)
    inner = power * precision + (1.0 - power) * np.eye(mixture.n_dim)
    covariance = np.linalg.inv(inner)
    pull = power * np.einsum("kij,kj->ki", precision, mixture.means)
    mean = np.einsum("kij,kj->ki", covariance, pull)
    squares = power * np.einsum("ki,kij,kj->k", mixture.means, precision, mixture.means)
    squares -= np.einsum("ki,ki->k", mean, pull)
    log_weight = power * (np.log(mixture.weights) + 0.5 * np.linalg.slogdet(precision)[1])
    log_weight -= 0.5 * (np.linalg.slogdet(inner)[1] + squares)
    weight = np.exp(log_weight - log_weight.max())
    root = np.linalg.cholesky(0.5 * (covariance + covariance.transpose(0, 2, 1)))
    return StudentTMixture(weight / weight.sum(), mean, root, _DRAWN_DOF)


def _beside(
    boxes: np.ndarray,
    fits: Sequence[tuple[Kernels, ...]],
    part: np.ndarray,
    u: np.ndarray,
    worth: np.ndarray,
    share: float,
) -> tuple[tuple[Kernels, ...], tuple[float, ...], np.ndarray]:
    """Return kernels, their shares, and the density (m,) of boxes and kernels at the judging simulations u (m, D)."""
    density = np.empty((1 + len(fits), len(u)))
    density[0] = boxes
    for out, fit in zip(density[1:], fits, strict=True):
        for number, own in enumerate(fit):
            out[part == number] = own.density(to_normal(u[part == number]))
    pull = np.r_[_PULL_BOXES, np.full(len(fits), _PULL_KERNELS / len(fits))]
    shares = best_shares(density, worth, share, pull * (worth @ worth) / worth.sum() ** 2)
    shares[1:][shares[1:] < _LEAST_SHARE] = 0.0
    shares[0] = max(shares[0], (1.0 / _MOST_LOCAL - 1.0) * shares[1:].sum())
    shares /= shares.sum()
    used = np.flatnonzero(shares[1:]).tolist()
    kernels = tuple(kernel for i in used for kernel in fits[i])
    each = np.repeat(shares[1:][used] / _PARTS, _PARTS)
    return kernels, tuple(each.tolist()), shares @ density


def best_shares(
    density: np.ndarray, worth: np.ndarray, floor: float, pull: np.ndarray
) -> np.ndarray:
    r"""Return the mixture shares of densities with most effective draws per simulation.

    .. math:: \min_a \; \log \sum_i \frac{w_i}{s + (1 - s) \sum_c a_c d_c(u_i)} - \sum_c t_c \log a_c

    over shares that sum to one. The sum over accepted simulations estimates the variance of weights (Douc,
    Guillin, Marin & Robert 2007, doi:10.1051/ps:2007028). The second term keeps all densities in the mixture while
    there are few simulations to judge them by; a useless density gets a share of about :math:`t_c`.

    Parameters
    ----------
    density : array (C, n)
        Densities at accepted simulations that they were not fitted to, relative to the prior.
    worth : array (n,)
        Weights w, not all zero.
    floor : float
        Share s of the prior.
    pull : array (C,)
        Penalty weights t, positive.

    Returns
    -------
    array (C,)
        Shares, which sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.learning import best_shares
    >>> density = np.array([[1.0, 9.0], [9.0, 1.0], [0.0, 0.0]])
    >>> best_shares(density, np.ones(2), 0.1, np.full(3, 1e-3)).round(2)
    array([0.5, 0.5, 0. ])
    """

    def target(z: np.ndarray) -> tuple[float, np.ndarray]:
        a = softmax(z)
        inverse = worth / (floor + (1.0 - floor) * (a @ density))
        cost = inverse.sum()
        slope = -(1.0 - floor) * (density @ (inverse**2 / np.maximum(worth, 1e-300))) / cost
        gradient = a * (slope - a @ slope) - (pull - a * pull.sum())
        return float(np.log(cost) - pull @ log_softmax(z)), gradient

    start, options = np.zeros(len(density)), {"maxiter": 100}
    found = minimize(target, start, jac=True, method="L-BFGS-B", options=options)
    return softmax(found.x)
