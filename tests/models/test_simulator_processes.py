"""Jump processes, queues, stochastic volatility: moments in closed form, caps, bad parameters."""

import math

import numpy as np
import pytest

from models import heston as sv
from models import lotka_volterra as lv
from models import mg1_queue as queue


def assert_means(draws, expected):
    """Means of the columns of draws (n, k), by their own standard errors."""
    errors = draws.std(axis=0) / math.sqrt(len(draws))
    z = (draws.mean(axis=0) - expected) / np.maximum(errors, 1e-15)
    assert np.abs(z).max() < 4.0, z


# --- predators and prey ---------------------------------------------------------------------------


def test_births_and_deaths_alone():
    """Without meetings prey are a Yule process and predators a death process."""
    rates = np.tile([0.5, 0.0, 0.0, 0.4], (3000, 1))
    paths = lv.paths(np.random.default_rng(1), rates, start=(20, 30), duration=2.0, n_times=3)
    np.testing.assert_array_equal(paths[:, 0], np.tile([20.0, 30.0], (3000, 1)))
    for column, t in ((1, 1.0), (2, 2.0)):
        grown, kept = math.exp(0.5 * t), math.exp(-0.4 * t)
        mean = np.array([20.0 * grown, 30.0 * kept])
        variance = np.array([20.0 * grown * (grown - 1.0), 30.0 * kept * (1.0 - kept)])
        assert_means(paths[:, column], mean)
        assert_means(np.square(paths[:, column] - mean), variance)


def test_balance_of_births_and_deaths():
    """Changes minus the integrals of their rates have mean zero."""
    rates = np.array([0.7, 0.01, 0.005, 0.4])
    n_times, duration = 401, 4.0
    paths = lv.paths(
        np.random.default_rng(2), np.tile(rates, (2000, 1)), duration=duration, n_times=n_times
    )
    x, y = paths[:, :, 0], paths[:, :, 1]
    step = duration / (n_times - 1)

    def integral(f):
        return step * (f.sum(axis=1) - 0.5 * (f[:, 0] + f[:, -1]))

    prey = x[:, -1] - x[:, 0] - integral(rates[0] * x - rates[1] * x * y)
    predators = y[:, -1] - y[:, 0] - integral(rates[2] * x * y - rates[3] * y)
    assert_means(np.column_stack([prey, predators]), 0.0)
    assert np.abs(np.diff(x, axis=1)).max() > 0 and x.min() >= 0 and y.min() >= 0
    # The variance of such a martingale is the mean number of events.
    events = integral(rates[0] * x + rates[1] * x * y)
    assert_means((prey**2 - events)[:, None], 0.0)


def test_summaries_by_numpy():
    path = lv.paths(np.random.default_rng(3), lv.TRUTH[None])[0]
    out = np.empty(9)
    lv.summarise(path, out)
    gap = path - path.mean(axis=0)
    zero = (gap**2).sum(axis=0)
    one, two = (gap[1:] * gap[:-1]).sum(axis=0) / zero, (gap[2:] * gap[:-2]).sum(axis=0) / zero
    expected = [*path.mean(axis=0), *np.log1p(path.var(axis=0))]
    expected += [one[0], two[0], one[1], two[1], np.corrcoef(path.T)[0, 1]]
    np.testing.assert_allclose(out, expected, rtol=1e-10)
    constant = np.tile([3.0, 0.0], (151, 1))
    lv.summarise(constant, out)
    np.testing.assert_allclose(out, [3.0, 0, 0, 0, 0, 0, 0, 0, 0], atol=1e-12)
    assert len(lv.SUMMARIES) == len(out)


def test_long_runs_and_impossible_rates_fail():
    """Prey without predation reach the cap; where nothing happens nothing fails."""
    rates = np.array([
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [-0.1, 0.0, 0.0, 0.0],
        [np.inf, 0.0, 0.0, 0.0],
        [np.nan, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 1.0],
    ])  # fmt: skip
    failed = np.isnan(lv.paths(np.random.default_rng(4), rates)[:, 0, 0])
    np.testing.assert_array_equal(failed, [True, False, True, True, True, False])
    example = lv.lotka_volterra(prior="unit")
    summaries = example.simulate(np.random.default_rng(5), rates)
    np.testing.assert_array_equal(np.isnan(summaries).all(axis=1), failed)
    np.testing.assert_array_equal(np.isnan(summaries).any(axis=1), failed)
    np.testing.assert_array_equal(np.isinf(example.distance(summaries)), failed)
    np.testing.assert_allclose(summaries[1], [100.0, 50.0, 0, 0, 0, 0, 0, 0, 0], atol=1e-9)


def test_cap_counts_events():
    """A death process of 150 animals has exactly 150 events."""
    rates = np.tile([0.0, 0.0, 0.0, 10.0], (5, 1))
    for cap, failed in ((49, True), (50, False)):
        paths = lv.paths(np.random.default_rng(6), rates, max_events=cap)
        assert np.isnan(paths).all() == failed
        if not failed:
            np.testing.assert_array_equal(paths[:, -1], np.tile([100.0, 0.0], (5, 1)))


def test_lotka_volterra_arguments():
    with pytest.raises(ValueError, match="prior must be 'log' or 'unit', got 'flat'"):
        lv.lotka_volterra(prior="flat")
    with pytest.raises(ValueError, match=r"truth\[1\] must be positive and finite, got 0.0"):
        lv.lotka_volterra(truth=[0.5, 0.0, 0.005, 0.5])
    with pytest.raises(ValueError, match="gives more than max_events=100 events"):
        lv.lotka_volterra(max_events=100)
    with pytest.raises(TypeError, match="max_events must be an integer"):
        lv.lotka_volterra(max_events=1e4)


def test_log_and_unit_priors_are_one_process():
    log, unit = lv.lotka_volterra(), lv.lotka_volterra(prior="unit")
    np.testing.assert_array_equal(log.observed, unit.observed)
    np.testing.assert_allclose(np.exp(log.truth), unit.truth)
    u = np.array([[0.0, 0.5, 1.0, 0.25]])
    np.testing.assert_allclose(np.exp(log.cube(u)), 10.0 ** (3.0 * (u - 1.0)))
    np.testing.assert_array_equal(unit.cube(u), u)


# --- pelts ----------------------------------------------------------------------------------------


def test_table_of_pelts():
    assert lv.YEARS.shape == lv.HARES.shape == lv.LYNXES.shape == (21,)
    # Hares peak two years before lynxes at the first peak, one year at the second.
    assert lv.YEARS[lv.HARES[:11].argmax()] == 1903 and lv.YEARS[lv.LYNXES[:11].argmax()] == 1904
    assert lv.YEARS[11 + lv.HARES[11:].argmax()] == 1913
    assert lv.YEARS[11 + lv.LYNXES[11:].argmax()] == 1915
    example = lv.hudson_bay()
    pelts = np.exp(example.observed).reshape(20, 2)
    np.testing.assert_allclose(pelts, np.column_stack([lv.HARES, lv.LYNXES])[1:])


def test_distance_is_a_root_mean_square():
    example = lv.hudson_bay()
    summaries = example.observed + 0.5 * np.tile([1.0, -1.0], 20)
    assert example.distance(summaries[None])[0] == pytest.approx(0.5)


def test_leaps_without_meetings():
    """Means of births and deaths by leaps, and of the noise on top."""
    n, per_year, animals = 4000, 10, 5
    rates = np.tile([0.3, 0.0, 0.0, 0.4], (n, 1))
    pelts = lv.leaps(np.random.default_rng(7), rates, 30.0, 20.0, 3, per_year, animals, 0.2)
    lift = math.exp(0.02)
    steps = per_year * np.arange(1, 4)
    expected = np.column_stack([30.0 * 1.03**steps, 20.0 * 0.96**steps])
    assert_means(pelts.reshape(n, -1), lift * expected.ravel())
    quiet = lv.leaps(np.random.default_rng(8), rates, 30.0, 20.0, 3, per_year, animals, 0.0)
    counts = quiet * animals
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)


def test_more_animals_fluctuate_less_around_the_equations():
    """With many animals a year of leaps is a year of the differential equations."""
    rates = np.array([0.55, 0.028, 0.024, 0.8])
    x, y = 30.0, 4.0
    for _ in range(20_000):
        x, y = (
            x + (rates[0] * x - rates[1] * x * y) / 20_000,
            y + (rates[2] * x * y - rates[3] * y) / 20_000,
        )
    pelts = lv.leaps(
        np.random.default_rng(9), np.tile(rates, (400, 1)), 30.0, 4.0, 1, 500, 2000, 0.0
    )
    np.testing.assert_allclose(pelts[:, 0].mean(axis=0), [x, y], rtol=2e-3)
    few = lv.leaps(np.random.default_rng(9), np.tile(rates, (400, 1)), 30.0, 4.0, 1, 500, 20, 0.0)
    ratio = few[:, 0].std(axis=0) / pelts[:, 0].std(axis=0)
    np.testing.assert_allclose(ratio, 10.0, rtol=0.25)


def test_extinct_and_exploding_populations():
    rates = np.array(
        [[0.0, 0.0, 0.0, 50.0], [5.0, 0.0, 0.0, 0.5], [np.nan, 0, 0, 0], [-1.0, 0, 0, 0]]
    )
    pelts = lv.leaps(np.random.default_rng(10), rates, 30.0, 4.0, 20, 20, 10, 0.0)
    np.testing.assert_allclose(pelts[0], np.tile([30.0, 0.05], (20, 1)))
    assert np.isfinite(pelts[1, 0]).all() and np.isnan(pelts[1, -1]).all()
    assert np.isnan(pelts[2:]).all()
    with pytest.raises(ValueError, match="noise must be a standard deviation, got -1"):
        lv.hudson_bay(noise=-1.0)
    with pytest.raises(ValueError, match="animals must be at least 1"):
        lv.hudson_bay(animals=0)


@pytest.mark.slow
def test_pelts_give_the_rates_of_the_differential_equations():
    """Carpenter's posterior means lie within this posterior, which is wider."""
    example = lv.hudson_bay()
    rng = np.random.default_rng(11)
    theta = example.prior_sample(rng, 60_000)
    near = theta[example.distance(example.simulate(rng, theta)) < example.epsilon]
    assert len(near) > 60
    z = (near.mean(axis=0) - [0.55, 0.028, 0.024, 0.80]) / near.std(axis=0)
    assert np.abs(z).max() < 2.0
    assert np.all(near.std(axis=0) < 0.6 * example.prior_sample(rng, 10_000).std(axis=0))


# --- queue ----------------------------------------------------------------------------------------


def test_a_queue_that_never_empties():
    """Everybody arrives at once: uniform service times, of which order statistics are known."""
    summaries = queue.summaries_of_queues(
        np.random.default_rng(12), np.tile([1.0, 5.0, 1e9], (4000, 1)), 50
    )
    assert_means(summaries, 1.0 + 4.0 * (1.0 + 49.0 * queue.LEVELS) / 51.0)


def test_a_queue_without_service():
    """Times between departures are those between arrivals: exponential."""
    summaries = queue.summaries_of_queues(
        np.random.default_rng(13), np.tile([0.0, 0.0, 0.2], (4000, 1)), 50
    )
    assert_means(summaries[:, [0, 4]], [0.1, 5.0 * (1.0 / np.arange(1, 51)).sum()])


def test_departures_follow_the_recursion():
    """The same arrivals and services in plain Python."""
    y = np.empty(6)
    queue.departures(np.random.default_rng(14), np.array([1.0, 5.0, 0.2]), y)
    rng, arrived, left = np.random.default_rng(14), 0.0, 0.0
    for i in range(6):
        arrived += rng.standard_exponential() * 5.0
        done = max(arrived, left) + 1.0 + 4.0 * rng.random()
        assert y[i] == pytest.approx(done - left, rel=1e-12)
        left = done


def test_quantiles_by_numpy():
    y = np.random.default_rng(15).random(50)
    np.testing.assert_allclose(queue.quantiles(y), np.quantile(y, queue.LEVELS), rtol=1e-14)
    np.testing.assert_array_equal(queue.quantiles(np.array([2.0, 1.0])), [1, 1.25, 1.5, 1.75, 2])


def test_impossible_queues():
    theta = np.array(
        [[1.0, 5.0, 0.2], [5.0, 1.0, 0.2], [1.0, 5.0, 0.0], [-1.0, 5.0, 0.2], [1, 5, np.nan]]
    )
    failed = np.isnan(queue.mg1_queue().simulate(np.random.default_rng(16), theta)).all(axis=1)
    np.testing.assert_array_equal(failed, [False, True, True, True, True])
    with pytest.raises(ValueError, match="truth must have 0 <= theta1 <= theta2"):
        queue.mg1_queue(truth=[5.0, 1.0, 0.2])
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        queue.mg1_queue(1)


# --- volatility -----------------------------------------------------------------------------------


def returns(theta, n, n_steps, dt, seed):
    rng, out = np.random.default_rng(seed), np.empty((n, n_steps))
    for i in range(n):
        sv.log_returns(rng, np.asarray(theta), dt, out[i])
    return out


def test_constant_variance():
    """Without reversion and volatility of volatility returns are independent normals."""
    dt, v = 0.01, 0.3
    r = returns([0.0, 0.5, v, 0.4, 0.0], 2000, 5, dt, 17)
    assert_means(r, (0.02 - 0.5 * v) * dt)
    gap = r - (0.02 - 0.5 * v) * dt
    assert_means(gap**2, v * dt)
    assert_means(gap[:, 1:] * gap[:, :-1], 0.0)


def test_variance_reverts_and_correlates():
    dt, (kappa, xi, nu0, rho, sigma) = 0.01, (4.0, 0.5, 0.2, -0.7, 0.5)
    r = returns([kappa, xi, nu0, rho, sigma], 20_000, 40, dt, 18)
    variance = xi + (nu0 - xi) * (1.0 - kappa * dt) ** np.arange(40)
    noise = r - 0.02 * dt + 0.5 * variance * dt
    assert_means(noise[:, ::8] ** 2, variance[::8] * dt)
    # A return moves the next variance by rho sigma times itself.
    products = noise[:, :1] * noise[:, 1:2] ** 2
    assert_means(products, rho * sigma * nu0 * dt * dt)


def test_variance_below_zero_counts_as_zero():
    r = returns([0.1, 0.01, 1e-4, 0.0, 1.0], 200, 500, 0.01, 19)
    assert np.isfinite(r).all()
    assert (r == 0.02 * 0.01).any()  # no noise in these steps


def test_summaries_of_returns_by_numpy():
    r = returns(sv.TRUTH, 1, 300, 1.0 / 252.0, 20)[0]
    out = np.empty(7)
    sv.summarise(r, out)
    squares = r**2
    gap = squares - squares.mean()
    lags = [(gap[k:] * gap[:-k]).sum() / (gap**2).sum() for k in (1, 2)]
    expected = [r.mean(), squares.mean(), np.log(r.std()), np.log(squares.std()), *lags]
    expected.append(np.corrcoef(r, squares)[0, 1])
    np.testing.assert_allclose(out, expected, rtol=1e-10)
    sv.summarise(np.full(10, 0.1), out)
    assert np.isnan(out).all()
    assert len(sv.SUMMARIES) == 7


def test_heston_arguments():
    with pytest.raises(ValueError, match="truth must lie between"):
        sv.heston(50, truth=[3.0, 0.3, 0.2, -1.5, 0.6])
    with pytest.raises(ValueError, match="n_steps must be at least 3, got 2"):
        sv.heston(2)
    with pytest.raises(ValueError, match=r"dt must be positive and finite, got 0\.0"):
        sv.heston(50, dt=0.0)
