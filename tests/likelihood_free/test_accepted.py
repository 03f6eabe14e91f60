import math

import numpy as np
import pytest

from amc_pymc.likelihood_free.accepted import Accepted, accept, deal, effective, final_tolerance

RNG = np.random.default_rng(1)


def test_final_tolerance_leaves_enough():
    distance, log_weight = RNG.random(20_000), RNG.normal(size=20_000)
    found = final_tolerance(distance, log_weight, accepts=200)
    kept = accept(distance, log_weight, found)
    assert 80.0 < kept.effective < 125.0


def variances(rule, seed, n=3000, heavy=20.0, share=0.02):
    """Posterior variance that simulations accepted by a rule give; a few, of the tails, have much weight.

    Neither weights nor values go with the distance, so that all tolerances have the same posterior.
    """
    rng = np.random.default_rng(seed)
    tail = rng.random(n) < share
    weight = np.where(tail, heavy, 1.0) * rng.gamma(2.0, 0.5, n)
    x = np.where(tail, 2.0, 1.0) * rng.standard_normal(n)
    kept = accept(np.arange(n) / n, np.log(weight), rule(np.arange(n) / n, np.log(weight)))
    return kept.weight @ x[kept.index] ** 2, len(kept.index)


def first_to_have_enough(distance, log_weight, enough=45.0):
    """The least tolerance with enough effective draws, as it was once."""
    w = np.exp(log_weight)
    return distance[np.flatnonzero(np.cumsum(w) ** 2 / np.cumsum(w**2) >= enough)[0]]


def test_the_tolerance_does_not_leave_out_heavy_weights():
    """Variances over many runs are those of a tolerance that is fixed in advance."""
    chosen = np.array([variances(final_tolerance, seed) for seed in range(2000)])
    assert 200 < chosen[:, 1].mean() < 400
    same = round(chosen[:, 1].mean()) / 3000
    fixed = np.array([variances(lambda d, w: same, 10_000 + seed) for seed in range(2000)])
    early = np.array([variances(first_to_have_enough, seed) for seed in range(2000)])

    def off(found):
        error = math.hypot(found[:, 0].std(), fixed[:, 0].std()) / math.sqrt(2000)
        return (found[:, 0].mean() - fixed[:, 0].mean()) / error

    assert abs(off(chosen)) < 3.0
    assert off(early) < -8.0


@pytest.mark.parametrize(
    ("distance", "options", "wanted"),
    [
        (np.arange(1000.0), {}, 29.0),
        (np.arange(1000.0), {"lowest": 50.0}, 50.0),
        (np.arange(10.0), {}, 9.0),
        (np.r_[np.zeros(40), np.full(5, np.inf)], {}, 0.0),
        (np.full(5, np.inf), {}, math.inf),
        (np.r_[1.0, np.full(99, np.inf)], {}, 1.0),
    ],
)
def test_final_tolerance_at_the_edges(distance, options, wanted):
    assert final_tolerance(distance, np.zeros(len(distance)), **options) == wanted


def test_final_tolerance_where_few_have_a_weight():
    distance = np.r_[np.arange(50.0), 1e9, np.inf]
    log_weight = np.r_[np.full(10, -np.inf), np.full(40, -1e5), -np.inf, 0.0]
    assert final_tolerance(distance, log_weight) == 39.0
    assert final_tolerance(distance, np.where(distance < 20.0, log_weight, -np.inf)) == 19.0
    with pytest.raises(ValueError, match="prior density is zero at all 51 simulations that have a"):
        final_tolerance(distance, np.where(np.isfinite(distance), -np.inf, 0.0))


def test_accept_leaves_out_what_has_no_weight():
    found = accept(np.array([0.1, 0.2, np.inf, 0.05]), np.array([0.0, 0.0, 0.0, -np.inf]), math.inf)
    np.testing.assert_array_equal(found.index, [0, 1])
    assert effective(np.array([-np.inf])) == 0.0 and effective(np.array([])) == 0.0


def test_chains_share_nothing_and_keep_the_weights():
    weight = RNG.gamma(0.5, size=400)
    x = RNG.normal(size=400)
    found = Accepted(1.0, np.arange(400), np.log(weight))
    place = deal(found, 4, 5000, np.random.default_rng(2))
    assert place.shape == (4, 5000)
    parts = [np.unique(p) for p in place]
    assert len(np.unique(np.concatenate(parts))) == sum(len(p) for p in parts) > 350
    for c, own in enumerate(parts):
        wanted = (weight * x)[own].sum() / weight[own].sum()
        assert abs(x[place[c]].mean() - wanted) < 2e-3  # systematic: within 400 / 5000 draws
    assert abs(np.corrcoef(x[place[0]][:-1], x[place[0]][1:])[0, 1]) < 4.0 / math.sqrt(5000)


def test_fewer_accepted_than_chains():
    place = deal(Accepted(1.0, np.arange(2), np.zeros(2)), 4, 10, np.random.default_rng(3))
    assert place.shape == (4, 10) and set(place.ravel()) == {0, 1}
