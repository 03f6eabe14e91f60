"""The draw of the model index against probabilities computed here from normal densities and priors."""

import functools

from types import SimpleNamespace

import numpy as np
import pytest

from scipy import stats

from amc_pymc.engine.jit import first_class
from amc_pymc.tall.decisions import LOGP
from amc_pymc.tall.mode import GaussianFit
from amc_pymc.tall.racing import REWARDS, ExactRace, NormalRace
from amc_pymc.tall.samplers import gibbs
from amc_pymc.tall.samplers.chain import Audits
from amc_pymc.tall.samplers.index import ModelSpace
from amc_pymc.tall.surrogate import Surrogate, no_surrogate

# Three models of the same rows: a mean, a regression (two parameters), a log scale.
N = 40
_data = np.random.default_rng(3)
X = _data.normal(size=N)
Y = 0.3 + 0.2 * X + _data.normal(size=N)
SIZES = (1, 2, 1)
M = len(SIZES)
LOG_PRIOR = np.log([0.2, 0.5, 0.3])
MEANS = np.array([0.25]), np.array([0.3, 0.2]), np.array([0.1])
FACTORS = np.array([[0.3]]), np.array([[0.25, 0.0], [0.2, 0.1]]), np.array([[0.15]])
PSEUDO_PRIORS = [stats.multivariate_normal(m, f @ f.T) for m, f in zip(MEANS, FACTORS)]
#: Centres of the expansions, away from the pseudo-priors' means.
CENTRES = np.array([0.1]), np.array([0.2, 0.3]), np.array([-0.1])
WHOLE = np.concatenate(MEANS)


def normal_log(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


def row_logs(k, theta):
    """Log-likelihoods (N,) of model k's rows."""
    if k == 0:
        return normal_log(Y, theta[0], 1.0)
    if k == 1:
        return normal_log(Y, theta[0] + theta[1] * X, 1.0)
    return normal_log(Y, 0.0, np.exp(theta[0]))


def row_derivatives(k, theta):
    """Population gradient (D_k,) and Hessian (D_k, D_k) of model k."""
    if k == 2:
        power = (Y**2).sum() * np.exp(-2.0 * theta[0])
        return np.array([-N + power]), np.array([[-2.0 * power]])
    design = np.ones((N, 1)) if k == 0 else np.column_stack([np.ones(N), X])
    return design.T @ (Y - design @ theta), -design.T @ design


def prior_log(k, theta):
    if k == 2:
        return normal_log(theta[0], 0.0, 0.5)
    return normal_log(theta, 0.0, 1.0 + k).sum()


@functools.cache
def compiled_prior(k, value=None):
    """The log prior of a model, or a number."""

    @first_class(LOGP)
    def out(theta):
        if value is not None:
            return value
        sd = 0.5 if k == 2 else 1.0 + k
        total = 0.0
        for t in theta:
            total -= 0.5 * (t / sd) ** 2 + np.log(sd * np.sqrt(2 * np.pi))
        return total

    return out


@functools.cache
def rewards(k, taylor=False, bad_row=-1, bad_value=0.0):
    """Rows of model k, less their expansion; one value replaced."""

    @first_class(REWARDS)
    def out(points, centre, rows):
        values = np.empty((points.shape[0], rows.size))
        for a in range(points.shape[0]):
            t = points[a, 0]
            for j in range(rows.size):
                n = rows[j]
                if k == 0:
                    r = Y[n] - t
                elif k == 1:
                    r = Y[n] - t - points[a, 1] * X[n]
                else:
                    r = Y[n] * np.exp(-t)
                v = -0.5 * r * r - 0.5 * np.log(2 * np.pi)
                if k == 2:
                    v -= t
                if taylor and k < 2:
                    v = 0.0  # quadratic: the expansion is exact
                if taylor and k == 2:
                    c = centre[0]
                    u, q = t - c, Y[n] ** 2 * np.exp(-2.0 * c)
                    v -= -c - 0.5 * q - 0.5 * np.log(2 * np.pi) + (q - 1.0) * u - q * u * u
                if n == bad_row:
                    v = bad_value
                values[a, j] = v
        return values

    return out


def prepared_model(k, taylor, exact, rest=None, **bad):
    """What draws of the index need to know of model k."""
    surrogate = no_surrogate(CENTRES[k])
    if taylor:
        surrogate = Surrogate(CENTRES[k], *row_derivatives(k, CENTRES[k]))

    def base(eta):
        return (row_logs(k, eta).sum() if taylor else 0.0), None

    factor = FACTORS[k]
    densities = SimpleNamespace(
        rest=compiled_prior(k, rest),
        observed_vars=("y",),
        value_and_gradient=lambda theta: (row_logs(k, theta).sum(), None),
        rest_value_and_gradient=lambda theta: (prior_log(k, theta), None),
        values=lambda theta, rows: np.where(
            rows == bad.get("bad_row"), bad.get("bad_value"), row_logs(k, theta)[rows]
        ),
        all_values=lambda theta: row_logs(k, theta),
    )
    raced = SimpleNamespace(
        n_units=N, race_cost=4.0, audit_cost=2.0, value_and_gradient=base,
        state_rewards=rewards(k, taylor, **bad),
    )  # fmt: skip
    fit = GaussianFit(MEANS[k], np.linalg.inv(factor @ factor.T), np.arange(SIZES[k]))
    return SimpleNamespace(
        densities=densities, raced=raced, fit=fit, cut=None, eta=lambda theta: theta,
        start=np.zeros(SIZES[k]), surrogate=surrogate, rounding_only=False, rows_spent=0,
        exact_rows=np.array(exact, np.int64),
    )  # fmt: skip


def space_of(*, taylor=False, exact=(), normal=False, bad_model=-1, rests=(None,) * M, **bad):
    samplers = [
        SimpleNamespace(
            prepared=prepared_model(k, taylor, exact, rests[k], **(bad if k == bad_model else {}))
        )
        for k in range(M)
    ]
    race = NormalRace(batch_size=10) if normal else ExactRace()
    return ModelSpace(samplers, race, Audits(1, max_share=None))


def point_of(space, current, theta=None):
    x = np.concatenate([[current], LOG_PRIOR, WHOLE])
    if theta is not None:
        space.theta(x)[:] = theta
    return x


class Draws:
    """Draws of the index, each from the same point."""

    def __init__(self, space, seed, draws=0):
        self.space, self.rng = space, np.random.default_rng(seed)
        self.chain = gibbs.init(space.sampler, self.rng, draws=draws)

    def __call__(self, current, theta=None):
        """Return the point before, with the others' parameters drawn, the model drawn, and counts."""
        x = point_of(self.space, current, theta)
        self.space.draw_others(x, self.rng)
        new, counts = gibbs.step(self.space.sampler, self.chain, x, self.rng)
        np.testing.assert_array_equal(new[1:], x[1:])
        return x, int(new[0]), counts


def thetas(space, x):
    return [space.theta(np.concatenate([[k], x[1:]])) for k in range(M)]


def log_scores(space, x, *, rows=True):
    out = LOG_PRIOR.copy()
    for k, theta in enumerate(thetas(space, x)):
        out[k] += prior_log(k, theta) - PSEUDO_PRIORS[k].logpdf(theta)
        out[k] += row_logs(k, theta).sum() if rows else 0.0
    return out


@pytest.mark.parametrize("current", range(M))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"taylor": True},
        {"exact": (0, 7, 39)},
        {"taylor": True, "exact": (0, 7, 39)},
        {"exact": tuple(range(N))},
    ],
    ids=["plain", "taylor", "exact rows", "taylor, exact rows", "all rows exact"],
)
def test_models_are_drawn_with_their_exact_probabilities(settings, current):
    space = space_of(**settings)
    draw, scores, hits, seen = Draws(space, [5, current]), [], [], []
    for _ in range(1_000):
        x, model, counts = draw(current, MEANS[current] + 0.1)
        scores.append(log_scores(space, x))
        hits.append(model)
        seen.append(counts.rewards[0] + M * counts.other[0])
    p = np.exp(scores - np.logaddexp.reduce(scores, axis=1)[:, None])
    hit = np.array(hits)[:, None] == np.arange(M)
    # Sums of indicators less probabilities, over all draws and where a model is likely or not.
    for part in (p >= 0.0, p < 0.3, p > 0.6):
        error = ((hit - p) * part).sum(axis=0)
        sd = np.sqrt((p * (1 - p) * part).sum(axis=0))
        big = sd > 3.0
        assert big.any()
        assert np.abs(error[big] / sd[big]).max() < 4.0
    error = (hit - p).sum(axis=0)[:-1]
    covariance = (np.diag(p.sum(axis=0)) - p.T @ p)[:-1, :-1]
    statistic = error @ np.linalg.solve(covariance, error)
    assert stats.chi2.sf(statistic, M - 1) > 1e-4
    assert set(seen) == {M * N}


def test_others_are_drawn_from_their_pseudo_priors_and_the_current_stays():
    space, rng = space_of(), np.random.default_rng(2)
    for current in (1, 0):
        drawn = [[] for _ in range(M)]
        for _ in range(8_000):
            x = point_of(space, current, MEANS[current] + 0.4)
            space.draw_others(x, rng)
            for k, theta in enumerate(thetas(space, x)):
                drawn[k].append(theta)
        assert np.all(np.array(drawn[current]) == MEANS[current] + 0.4)
        for k in set(range(M)) - {current}:
            white = np.linalg.solve(FACTORS[k], (np.array(drawn[k]) - MEANS[k]).T)
            for row in white:
                assert stats.kstest(row, "norm").pvalue > 1e-4
                # Drawn anew each time: nothing is carried over.
                assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < 4 / np.sqrt(8_000)
            if k == 1:
                assert abs(np.corrcoef(white)[0, 1]) < 4 / np.sqrt(8_000)


@pytest.mark.parametrize("taylor", [False, True])
def test_a_race_errs_at_most_as_often_as_promised(taylor):
    """The same Gumbels on all rows, recovered from the log, as audits do it."""
    space = space_of(normal=True, taylor=taylor)
    draw, wrong, early, number = Draws(space, 6, draws=1), 0, 0, 2_000
    log = draw.chain.auditor.log
    for _ in range(number):
        log.seen[0] = 0
        x, model, counts = draw(0)
        right = np.argmax(log_scores(space, x) + log.other[0]) == model
        assert space.sampler.confirmed(log, 0, None) == right
        wrong += not right
        early += counts.raced[0] < N
    assert early > 100
    assert stats.binom.sf(wrong - 1, number, 0.05) > 1e-4


# --- impossible models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"rests": (None, -np.inf, None)},
        {"rests": (None, np.nan, None)},
        {"bad_model": 1, "bad_row": 11, "bad_value": -np.inf},
        {"bad_model": 1, "bad_row": 11, "bad_value": -np.inf, "exact": (11,)},
    ],
    ids=["rest", "NaN in rest", "raced row", "exact row"],
)
def test_an_impossible_model_is_not_drawn_and_the_others_are(settings):
    draw = Draws(space_of(**settings), 1)
    assert {draw(0)[1] for _ in range(300)} == {0, 2}


@pytest.mark.parametrize("exact", [(), (23,)], ids=["raced", "exact"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(value, exact):
    draw = Draws(space_of(bad_model=2, bad_row=23, bad_value=value, exact=exact), 1)
    message = "log-likelihood of y in row 23 is not finite in a state of model_index"
    with pytest.raises(ValueError, match=message):
        draw(0)
