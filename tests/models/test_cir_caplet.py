"""The caplet's estimators agree with each other and with the price in closed form."""

import math

import numpy as np
import pytest

from models.cir_caplet import STRIKES, Caplet, population_monte_carlo


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


@pytest.mark.parametrize("adapt", ["payoff", "weight"])
def test_populations_are_unbiased(adapt):
    """The second population, whose mixture was learned from ten paths, still has the right mean."""
    caplet, rng = Caplet(0.08), np.random.default_rng(11)
    n = 1_000
    last = [
        population_monte_carlo(caplet, 2, size=10, rng=rng, adapt=adapt)[1].values.mean()
        for _ in range(n)
    ]
    assert abs(np.mean(last) - caplet.price()) < 3.0 * np.std(last) / math.sqrt(n) + 0.002
