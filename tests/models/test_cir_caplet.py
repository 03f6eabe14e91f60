"""The caplet's estimators agree with each other and with the price in closed form."""

import math

import numpy as np
import pytest

from scipy.integrate import quad
from scipy.stats import norm

from models.cir_caplet import (
    STRIKES,
    THETAS,
    Caplet,
    euler,
    mixture_weights,
    population_monte_carlo,
    weights,
)


def test_euler_by_hand():
    """One path in plain Python, from the formulas of the paper's appendix F, corrected."""
    caplet = Caplet(steps=5)
    noise = np.random.default_rng(7).standard_normal(5) + 0.4 / math.sqrt(5)
    h, rates = 0.2, [0.08]
    for e in noise:
        r = rates[-1]
        rates.append(r + (0.016 - 0.2 * r) * h + 0.02 * math.sqrt(r * h) * e)
    integral = h * (0.5 * (rates[0] + rates[5]) + sum(rates[1:5]))
    paths = caplet.simulate(np.array([0.4]), np.random.default_rng(7))
    np.testing.assert_allclose(paths.rate, [rates[5]], rtol=1e-13)
    np.testing.assert_allclose(paths.discount, [math.exp(-integral)], rtol=1e-13)
    np.testing.assert_allclose(paths.z, [noise.sum() / math.sqrt(5)], rtol=1e-13)


def test_blocks_are_joined():
    """More paths than fit into a block, each with its own drift."""
    tilts = np.repeat([0.0, 100.0], [100, 30])
    z = Caplet(steps=3).simulate(tilts, np.random.default_rng(1)).z
    assert np.all(np.abs(z - tilts) < 6.0)


def test_negative_rates_do_not_break_the_root():
    rate, _, _ = euler(np.zeros(1000), 1e-4, 0.2, 1.0, 0.01, 0.1, 10, np.random.default_rng(1))
    assert np.isfinite(rate).all() and (rate < 0.0).any()


@pytest.mark.parametrize("strike", STRIKES)
def test_all_arms_agree(strike):
    """Sixteen drifts and one price: the tolerance is of their differences in standard errors."""
    caplet, rng, n = Caplet(strike), np.random.default_rng(3), 20_000
    values = np.array([arm.sample(n, rng) for arm in caplet.arms()])
    means, errors = values.mean(1), values.std(1) / math.sqrt(n)
    centre = np.average(means, weights=errors**-2)
    z = (means - centre) / errors
    assert np.abs(z).max() < 3.5
    assert np.sum(z**2) < 37.7  # 0.1 % of chi-square with 15 degrees of freedom
    # Euler's bias is 0.13 % at most.
    assert abs(centre - caplet.price()) < 3.0 * np.sum(errors**-2) ** -0.5 + 0.002 * centre


def test_best_drift_moves_with_the_strike():
    rng = np.random.default_rng(4)
    best = [
        THETAS[np.argmin([arm.sample(20_000, rng).var() for arm in Caplet(k).arms()])]
        for k in STRIKES
    ]
    assert best[0] in (0.2, 0.3) and best[1] in (0.4, 0.5) and best[2] in (1.1, 1.2)


def test_price_by_extrapolation():
    """Richardson's rule on Euler's scheme with a control variate; the error left is O(1/n^2)."""
    rng, n, found, errors = np.random.default_rng(5), 1_000_000, [], []
    for steps in (4, 8):
        caplet = Caplet(0.08, steps=steps)
        paths = caplet.simulate(np.full(n, 1.2), rng)
        values = weights(paths.z, 1.2) * caplet.payoff(paths)
        found.append(values.mean())
        errors.append(values.std() / math.sqrt(n))
    price = Caplet(0.08).price()
    error = math.hypot(2.0 * errors[1], errors[0])
    assert abs(found[0] - price) > 8.0 * errors[0]  # there is a bias to remove
    assert abs(2.0 * found[1] - found[0] - price) < 3.0 * error


def test_price_from_the_density():
    """Normal approximation of a short maturity, where discounting and reversion vanish."""
    caplet = Caplet(0.08, maturity=1e-4)
    sd = 0.02 * math.sqrt(0.08 * 1e-4)
    expected = 1000.0 * quad(lambda u: sd * u * norm.pdf(u), 0.0, 10.0)[0]
    np.testing.assert_allclose(caplet.price(), expected, rtol=2e-3)


def test_price_at_strike_zero_is_minus_the_slope_of_the_bond():
    """E[exp(-I) r(T)] = -dP(0, T)/dT, with the bond price by finite differences."""
    price = Caplet(0.0).price() / 1000.0

    def bond(maturity):
        h = math.sqrt(0.2**2 + 2.0 * 0.02**2)
        g = math.expm1(h * maturity)
        d = 2.0 * h + (0.2 + h) * g
        power = 2.0 * 0.016 / 0.02**2
        a = (2.0 * h * math.exp((0.2 + h) * maturity / 2.0) / d) ** power
        return a * math.exp(-2.0 * g / d * 0.08)

    slope = (bond(1.0 + 1e-5) - bond(1.0 - 1e-5)) / 2e-5
    np.testing.assert_allclose(price, -slope, rtol=1e-7)


def test_literal_drift_warns_and_misses():
    """The estimator of the printed formula is unbiased, and no sample shows it."""
    caplet = Caplet(0.08, drift="literal")
    with pytest.warns(UserWarning, match=r"theta = 0.8 on each of 100 steps.*Use drift='scaled'"):
        arm = caplet.arm(0.8)
    assert arm.sample(20_000, np.random.default_rng(1)).mean() < 0.1 * caplet.price()
    assert caplet.arm(0.1).tilt == pytest.approx(1.0)  # no warning


def test_mixture_weights():
    z, tilts, alpha = (
        np.array([-1.0, 0.5, 2.0]),
        np.array([0.0, 1.0, 2.5]),
        np.array([0.2, 0.8, 0.0]),
    )
    density = 0.2 * norm.pdf(z) + 0.8 * norm.pdf(z - 1.0)
    np.testing.assert_allclose(mixture_weights(z, tilts, alpha), norm.pdf(z) / density, rtol=1e-12)


@pytest.mark.parametrize("adapt", ["payoff", "square", "weight"])
def test_populations_are_unbiased(adapt):
    """The second population, whose mixture was learned from ten paths, still has the right mean."""
    caplet, rng = Caplet(0.08), np.random.default_rng(11)
    n = 2_000
    last = [
        population_monte_carlo(caplet, 2, size=10, rng=rng, adapt=adapt)[1].values.mean()
        for _ in range(n)
    ]
    assert abs(np.mean(last) - caplet.price()) < 3.0 * np.std(last) / math.sqrt(n) + 0.002


def test_mixture_learns_where_the_payoff_is():
    rng = np.random.default_rng(12)
    done = population_monte_carlo(Caplet(0.08), 10, size=2_000, rng=rng, floor=0.005)
    assert np.dot(done[-1].alpha, THETAS) > 1.0
    assert done[-1].alpha.min() > 0.004 and done[-1].alpha.sum() == pytest.approx(1.0)
    naive = population_monte_carlo(Caplet(0.08), 10, size=2_000, rng=rng, adapt="weight")
    assert np.dot(naive[-1].alpha, THETAS) < 0.5
    assert done[0].drawn.sum() == 2_000


def test_squares_find_a_mixture_as_good_as_the_best_drift():
    """The least variance over mixtures is at most that of any drift; at other strikes it takes longer."""
    caplet, rng = Caplet(0.08), np.random.default_rng(13)
    best = min(arm.sample(20_000, rng).var() for arm in caplet.arms())
    done = population_monte_carlo(caplet, 60, size=4_000, rng=rng, adapt="square")
    assert done[0].values.var() > 1.5 * best
    assert np.mean([p.values.var() for p in done[-5:]]) < 1.1 * best


def test_no_payoff_at_all_leaves_the_mixture():
    done = population_monte_carlo(Caplet(5.0), 2, size=10, rng=np.random.default_rng(1))
    np.testing.assert_allclose(done[1].alpha, 1.0 / 16.0)


def test_same_seed_same_values():
    arm = Caplet().arm(0.5)
    draws = [arm.sample(5, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert isinstance(arm(np.random.default_rng(1)), float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strike": -0.1}, "strike must not be negative"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"drift": "both"}, "drift must be 'scaled' or 'literal'"),
    ],
)
def test_bad_caplet(arguments, message):
    with pytest.raises(ValueError, match=message):
        Caplet(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"populations": 0, "size": 5}, "populations and size must be positive"),
        ({"populations": 1, "size": 5, "adapt": "x"}, "adapt must be one of"),
        ({"populations": 1, "size": 5, "floor": 0.2}, "floor must be in"),
    ],
)
def test_bad_population(arguments, message):
    with pytest.raises(ValueError, match=message):
        population_monte_carlo(Caplet(), rng=np.random.default_rng(1), **arguments)
    with pytest.raises(ValueError, match="theta must be finite"):
        Caplet().arm(math.inf)
