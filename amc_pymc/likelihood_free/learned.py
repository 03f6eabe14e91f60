"""Learned summary statistics: regressions of parameters on simulated data."""

from __future__ import annotations

import functools
import math

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scipy.special import ndtri
from scipy.stats import rankdata
from threadpoolctl import ThreadpoolController

from amc_pymc.likelihood_free.problem import lengths
from amc_pymc.likelihood_free.scale import centre_and_spread
from amc_pymc.progress import progress

#: Function from data (n, S) to features (n, F).
Features = Callable[[np.ndarray], np.ndarray]

#: Number of quantiles of exchangeable observations, if there are more observations than this.
_QUANTILES = 17
#: Maximum number of columns of an observation for which third moments mix different columns.
_FEW = 3
#: Absolute value at which correlations are clipped before they are transformed.
_CORRELATED = 1.0 - 1e-9
_TINY = 1e-300
#: Maximum lag, minimum simulations and maximum values that are compared when order is tested, and an error that is rounding.
_LAGS, _ORDERED, _RANKED, _ROUNDING = 8, 100, 1_000_000, 1e-9
#: Absolute value at which standardised features are clipped.
_FAR = 6.0
#: Maximum number of features for which a quadratic regression includes all products of two.
_MANY = 25
#: Maximum numbers of simulations that regressions are compared on, and trained on.
_COMPARED, _TRAINED = 3000, 20_000
#: Maximum training simulations and the candidate regressions for a quick fit, those for a thorough one, and the one that
#: learns from the closest simulations alone.
_QUICKLY, _QUICK = 5000, ("ridge", "quadratic ridge", "forest")
_THOROUGH, _NEARBY = (*_QUICK, "boosting"), "local quadratic ridge"
#: Minimum simulations for nonlinear regressions. Local regressions learn from this share of the simulations, the closest ones.
_FEWEST, _LOCAL = 200, 0.3
#: Number of cross-validation folds for comparing regressions.
_FOLDS = 2
_RIDGES = np.logspace(-3.0, 5.0, 9)


def exchangeable_features(shape: tuple[int, ...]) -> Features:
    r"""Return a function that computes order-independent features of exchangeable observations.

    Features are means, log standard deviations, Fisher's z of correlations, covariances, cube roots of third central
    moments, and the sorted values of each column. If there are more than 17 observations, 17 quantiles from the
    least to the largest of values and absolute values, and mean signs take the place of sorted values. Signs and
    absolute values tell outcomes and times apart in signed reaction times; extremes tell where a distribution begins.

    Parameters
    ----------
    shape : tuple of int
        Shape of the data: the number of observations m, then the shape of one observation.

    Returns
    -------
    callable
        Maps flattened data (n, S), with S the product of `shape`, to features (n, F).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.learned import exchangeable_features
    >>> features = exchangeable_features((3,))
    >>> x = np.array([[1.0, 2.0, 6.0], [6.0, 1.0, 2.0]])
    >>> bool(np.array_equal(*features(x)))
    True
    """
    m, d = shape[0], math.prod(shape[1:])
    rows, columns = np.triu_indices(d, 1)
    third = [(i, j) for i in range(d) for j in range(d) if i == j or d <= _FEW]
    levels = np.linspace(0.0, 1.0, _QUANTILES)

    def features(data: np.ndarray) -> np.ndarray:
        # Sort first to make rounding independent of the order, too.
        x = data.reshape(len(data), m, d)
        columns_last_first = np.moveaxis(x, 2, 0)[::-1]
        order = np.lexsort(columns_last_first, axis=1)  # by the first column, then the second, ...
        x = np.take_along_axis(x, order[..., None], axis=1)
        mean = x.mean(axis=1)
        gap = x - mean[:, None]
        covariance = np.einsum("nmi,nmj->nij", gap, gap) / m
        variance, across = np.einsum("nii->ni", covariance), covariance[:, rows, columns]
        sd = np.sqrt(variance)
        r = across / np.maximum(sd[:, rows] * sd[:, columns], _TINY)
        z = np.arctanh(np.clip(r, -_CORRELATED, _CORRELATED))
        moments = [np.einsum("nm,nm->n", gap[..., i] ** 2, gap[..., j]) / m for i, j in third]
        skewness = np.cbrt(np.stack(moments, axis=1))
        found = [mean, np.log(np.maximum(sd, _TINY)), z, variance, across, skewness]
        if m <= _QUANTILES:
            found.append(np.sort(x, axis=1).reshape(len(x), -1))
        else:
            both = np.concatenate([x, np.abs(x)], axis=2)
            ordered = np.quantile(both, levels, axis=1).swapaxes(0, 1)
            found += [ordered.reshape(len(x), -1), np.sign(x).mean(axis=1)]
        return np.concatenate(found, axis=1)

    return features


def order_contrast(data: np.ndarray, shape: tuple[int, ...]) -> float:
    r"""Return the largest of many contrasts whose mean is zero if observations are exchangeable, in standard errors.

    Observations are replaced by their ranks. Means and squares of each are compared with those of all, and products at
    distances of 1, 2, ... with each other. Zero for fewer than 100 simulations.

    Parameters
    ----------
    data : array (n, S)
    shape : tuple of int
        Shape of the data: the number of observations m, then the shape of one observation.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.learned import order_contrast
    >>> x = np.random.default_rng(1).normal(size=(1000, 4, 2))
    >>> bool(order_contrast(x.reshape(1000, 8), (4, 2)) < 6.0)
    True
    >>> bool(order_contrast(np.sort(x.reshape(1000, 8)), (8,)) > 6.0)
    True
    """
    if len(data) < _ORDERED:
        return 0.0
    m, lags = shape[0], range(1, min(shape[0], _LAGS + 1))
    some = data[: max(_ORDERED, _RANKED // data.shape[1])]
    ranks = rankdata(some.reshape(len(some) * m, -1), axis=0)
    z = (ranks / len(ranks) - 0.5).reshape(len(some), m, -1)
    products = [(z * np.roll(z, lag, axis=1)).mean(axis=1) for lag in lags]
    each = np.concatenate([z, z**2, np.stack(products, axis=1)], axis=1)
    parts = np.split(each, [m, 2 * m], axis=1)
    gaps = np.concatenate([part - part.mean(axis=1, keepdims=True) for part in parts], axis=1)
    error = np.maximum(gaps.std(axis=0) / math.sqrt(len(z)), _ROUNDING)
    return float(np.abs(gaps.mean(axis=0) / error).max())


def parameter_moments(x: np.ndarray) -> np.ndarray:
    r"""Return x and :math:`(x^2 - 1) / \sqrt2`, (n, 2D), for parameters x (n, D) on the normal scale.

    Their expectations describe the location and spread of the posterior. If the posterior is
    symmetric about zero, as for a scale that enters by its square, only the second is informative.
    """
    return np.concatenate([x, (x**2 - 1.0) / math.sqrt(2.0)], axis=1)


class LearnedSummaries(NamedTuple):
    r"""How to learn expectations of parameters given data by regression.

    .. math:: t(s) = \hat E[(x, x^2) \mid s] / \sigma

    with :math:`\sigma` the root mean square of cross-validated residuals. One unit is a posterior standard deviation,
    and statistics that cannot be learned hardly vary.

    Attributes
    ----------
    centre, spread : arrays (S,)
        Location and scale for standardising data.
    sigma : array (T,)
    name : str
        Name of the regression.
    learners : array of int
        Indices of the simulations that it may learn from.
    """

    centre: np.ndarray
    spread: np.ndarray
    sigma: np.ndarray
    name: str
    learners: np.ndarray


def learn_summaries(
    data: np.ndarray,
    x: np.ndarray,
    rng: np.random.Generator,
    *,
    names: Sequence[str] | None = None,
    trained: int = _TRAINED,
    near: np.ndarray | None = None,
    distance: np.ndarray | None = None,
    each: Callable[[], object] = lambda: None,
) -> LearnedSummaries:
    r"""Learn summary statistics: the posterior mean and second moment as functions of the data.

    Posterior means are the optimal summaries for squared error loss (Fearnhead & Prangle 2012,
    doi:10.1111/j.1467-9868.2011.01010.x). The candidates are ridge regression on features, their squares and
    products; extremely randomised trees (for forests see Raynal et al. 2019, doi:10.1093/bioinformatics/bty867);
    gradient boosting; and, with distances, the quadratic regression on the closest 30 % of the simulations alone. The one
    with the highest cross-validated skill is chosen.

    Parameters
    ----------
    data : array (n, S)
        Simulated data, finite.
    x : array (n, D)
        Parameters, on the scale where the prior is standard normal.
    rng : numpy.random.Generator
    names : sequence of str, optional
        Candidate regressions: "ridge", "quadratic ridge", "forest", "boosting"; all by default.
    trained : int
        Maximum number of simulations to learn from.
    near : array of int, optional
        Simulations near the data, whose errors choose the regression and are the units; by default those of all count.
    distance : array (n,), optional
        Distances from the observed data.
    each : callable
        Called after each candidate or, for boosting, after each of the 2D targets.

    Returns
    -------
    LearnedSummaries

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.learned import exchangeable_features, learn_summaries
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(1000, 1))
    >>> data = x + 0.5 * rng.normal(size=(1000, 8))
    >>> found = learn_summaries(exchangeable_features((8,))(data), x, rng)
    >>> bool(found.sigma[0] < 0.2)
    True
    """
    near = np.empty(0, int) if near is None else np.unique(near)
    every = np.arange(len(data))
    chosen = np.concatenate([near, np.setdiff1d(rng.permutation(every), near, True)])[:trained]
    centre, spread = centre_and_spread(data[chosen])
    z, y = _standardised(data, centre, spread), parameter_moments(x)
    seed = int(rng.integers(2**31))
    learners = dict.fromkeys(names or _THOROUGH, every)
    if len(data) < _FEWEST:
        learners = {"ridge": every}
    elif distance is not None:
        learners[_NEARBY] = np.argsort(distance, kind="stable")[: math.ceil(_LOCAL * len(data))]
    errors = {}
    with one_thread():
        for name, own in learners.items():
            some = chosen[np.isin(chosen, own) | np.isin(chosen, near)][:_COMPARED]
            squares = _left_out(name, z[some], y[some], seed, each)
            errors[name] = squares[: len(near) or None].mean(axis=0)
    y = y[chosen]
    variance = np.maximum(y[:_COMPARED].var(axis=0), 1e-300)
    # Negative skill counts as zero, which gives no advantage where nothing can be learned.
    left = {n: np.clip(squares / variance, 1e-300, 1.0) for n, squares in errors.items()}
    name = min(left, key=lambda n: float(np.log(left[n]).sum()))
    sigma = np.maximum(np.sqrt(errors[name]), 1e-9 * y.std(axis=0).max())
    return LearnedSummaries(centre, spread, sigma, name, learners[name])


def cross_fitted(
    data: np.ndarray,
    x: np.ndarray,
    learned: LearnedSummaries,
    others: np.ndarray,
    rng: np.random.Generator,
    *,
    folds: int = 5,
    trained: int = _TRAINED,
    each: Callable[[], object] = lambda: None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return learned summaries of simulations that the regression was not fitted to.

    The simulations are split into folds, and the regression applied to one fold is fitted to the others. A
    regression fitted to a simulation would use information on its parameters that is not in the data.

    Parameters
    ----------
    data : array (n, S)
    x : array (n, D)
    learned : LearnedSummaries
        Summaries that define the regression and its units.
    others : array (m, S)
        Further data, such as the observed data.
    rng : numpy.random.Generator
    folds : int
    trained : int
        Maximum number of simulations to learn from.
    each : callable
        Called after each fold.

    Returns
    -------
    fold : array of int (n,)
    summaries : array (n, T)
    of_others : array (folds, m, T)
        Summaries of `others` by the regression of each fold; compare a simulation with its own fold.
    """
    fold = rng.permutation(np.arange(len(data)) % folds)
    seed = int(rng.integers(2**31))
    z, z_others = (_standardised(d, learned.centre, learned.spread) for d in (data, others))
    y, of_others = parameter_moments(x), []
    out = np.empty(y.shape)
    for k in range(folds):
        allowed = rng.permutation(learned.learners[fold[learned.learners] != k])[:trained]
        own = np.flatnonzero(fold == k)
        with one_thread():
            regression = _regression(learned.name, z.shape[1], seed).fit(z[allowed], y[allowed])
            found = regression.predict(np.concatenate([z[own], z_others])) / learned.sigma
        out[own] = found[: len(own)]
        of_others.append(found[len(own) :])
        each()
    return fold, out, np.array(of_others)


def learn_and_apply(
    data: np.ndarray,
    x: np.ndarray,
    observed: np.ndarray,
    rng: np.random.Generator,
    *,
    thorough: bool = True,
    near: np.ndarray | None = None,
    distance: np.ndarray | None = None,
    progressbar: bool,
) -> tuple[LearnedSummaries, np.ndarray, np.ndarray, np.ndarray]:
    """Learn summaries, and return them with the results of :func:`cross_fitted` for the data (S,), with a progress bar."""
    trained, folds, names = (_TRAINED, 5, None) if thorough else (_QUICKLY, 2, _QUICK)
    steps = len(_QUICK) + (2 * x.shape[1] if thorough else 0) + (distance is not None) + folds
    with progress("Learning summary statistics", steps, enabled=progressbar) as bar:
        learned = learn_summaries(
            data, x, rng, names=names, trained=trained, near=near, distance=distance,
            each=bar.advance,
        )  # fmt: skip
        return learned, *cross_fitted(
            data, x, learned, observed[None], rng, folds=folds, trained=trained, each=bar.advance
        )


def learned_distance(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    rng: np.random.Generator,
    *,
    thorough: bool = False,
    progressbar: bool = False,
) -> np.ndarray:
    """Return distances (N,) of learned summaries from those of the data, in posterior standard deviations.

    The summaries of a simulation are learned from others. Distances are inf where `summaries` are not finite.

    Parameters
    ----------
    u : array (N, D)
        Points of the unit cube.
    summaries : array (N, S)
    observed : array (S,)
    rng : numpy.random.Generator
    thorough : bool
        Use more regressions and simulations, as for final draws.
    progressbar : bool
    """
    out = np.full(len(u), np.inf)
    at = np.flatnonzero(np.isfinite(summaries).all(axis=1))
    _, fold, found, target = learn_and_apply(
        summaries[at], ndtri(u[at]), observed, rng, thorough=thorough, progressbar=progressbar
    )
    out[at] = lengths(found - target[fold, 0])
    return out


def one_thread() -> Any:
    """Limit boosting and linear algebra to one thread, because several wait for each other on busy machines."""
    return _thread_pools().limit(limits=1)


@functools.cache
def _thread_pools() -> ThreadpoolController:
    import sklearn.ensemble  # noqa: F401  only loaded libraries are limited

    return ThreadpoolController()


def _standardised(found: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip((found - centre) / spread, -_FAR, _FAR))


def _left_out(
    name: str, z: np.ndarray, y: np.ndarray, seed: int, each: Callable[[], object]
) -> np.ndarray:
    """Return cross-validated squared errors (n, T) of predictions."""
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    folds, squares = PredefinedSplit(np.arange(len(z)) % _FOLDS), []
    # Boosting is slow, and fits one target at a time in any case.
    for part in np.split(y, y.shape[1], axis=1) if name == "boosting" else [y]:
        found = cross_val_predict(_regression(name, z.shape[1], seed), z, part, cv=folds)
        squares.append((found - part) ** 2)
        each()
    return np.concatenate(squares, axis=1)


def _regression(name: str, n_features: int, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

    if name == "forest":
        most = max(1, math.ceil(n_features / 2))
        return ExtraTreesRegressor(100, min_samples_leaf=5, max_features=most, random_state=seed)
    if name == "boosting":
        single = HistGradientBoostingRegressor(
            max_iter=100, learning_rate=0.08, max_leaf_nodes=15, random_state=seed
        )
        return MultiOutputRegressor(single)
    ridge = RidgeCV(_RIDGES, alpha_per_target=True)
    if name == "ridge":
        return ridge
    products: Any = PolynomialFeatures(2, include_bias=False)
    if n_features > _MANY:
        products = FunctionTransformer(lambda z: np.concatenate([z, z**2], axis=1))
    # Features of the closest simulations alone are not standardised yet.
    return make_pipeline(StandardScaler(), products, StandardScaler(), ridge)
