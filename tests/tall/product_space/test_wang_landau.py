import numpy as np
import pytest

from amc_pymc.tall.product_space import wang_landau_step


@pytest.mark.parametrize(("t", "gain"), [(0, 1.0), (100, 0.5), (900, 0.1)])
def test_by_hand(t, gain):
    """Weights (0.2, 0.3, 0.5), model 1 visited: 0.3 becomes 0.3 exp(-gain) before normalising."""
    w = np.log([0.2, 0.3, 0.5])
    wang_landau_step(w, 1, t)
    left = 0.3 * np.exp(-gain)
    np.testing.assert_allclose(np.exp(w), np.array([0.2, left, 0.5]) / (0.7 + left), rtol=1e-12)


def test_weights_are_normalised_from_any_start():
    w = np.array([-3_000.0, -2_990.0, -3_005.0])
    wang_landau_step(w, 0, 0)
    assert np.exp(w).sum() == pytest.approx(1.0)
    assert w[0] - w[1] == pytest.approx(-11.0)


def test_visits_become_even():
    """Independent draws with evidences five units apart; afterwards the weights are fixed."""
    rng = np.random.default_rng(7)
    evidence = np.array([0.0, -5.0, 3.0])
    w = np.zeros(3)

    def visit():
        p = np.exp(w + evidence - np.logaddexp.reduce(w + evidence))
        return int(rng.choice(3, p=p))

    for t in range(20_000):
        wang_landau_step(w, visit(), t)
    # The last gain is 1/200, the weights fluctuate by about its root.
    p = np.exp(w + evidence - np.logaddexp.reduce(w + evidence))
    np.testing.assert_allclose(p, 1 / 3, atol=4 * np.sqrt(1 / 200) / 3)
    np.testing.assert_allclose(w - w[0], -(evidence - evidence[0]), atol=4 * np.sqrt(1 / 200))
