"""Distances of likelihood-free samplers in units of a pilot batch."""

import numpy as np
import pytest

from scipy import stats

import amc_pymc as amc

from tests.likelihood_free.abc_runs import DATA, SD, sample

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")


class TestDistanceScale:
    """Two statistics of a normal mean: a useful one of scale 1/1000, and noise of scale 1000."""

    OBSERVED = (0.0015, 0.0)

    @staticmethod
    def simulator(rng, mu):
        useful = rng.normal(mu, 0.5) / 1000.0
        return np.stack([useful, 1000.0 * rng.standard_normal(np.shape(mu))], axis=-1)

    def problem(self, **options):
        return amc.SimulatorProblem(
            {"mu": stats.uniform(-5.0, 10.0)}, self.simulator, self.OBSERVED, **options
        )

    def test_the_useful_statistic_is_heard(self):
        found = sample(self.problem(), distance_scale="mad")["posterior"]
        with (
            pytest.warns(UserWarning, match="may shift posterior means"),
            pytest.warns(UserWarning, match="of mu is .* times as wide"),
        ):
            deaf = sample(self.problem())["posterior"]
        assert abs(float(found["mu"].mean()) - DATA) < 0.5 and float(found["mu"].std()) < 1.0
        assert float(deaf["mu"].std()) > 2.0

    def test_a_statistic_that_does_not_vary_is_told(self):
        problem = amc.SimulatorProblem(
            {"mu": stats.uniform(-5.0, 10.0)},
            lambda rng, mu: np.stack([rng.normal(mu, SD), np.ones(np.shape(mu))], axis=-1),
            [DATA, 2.0],
        )
        with pytest.warns(UserWarning, match="statistics 1 of 2 did not vary"):
            found = sample(problem, distance_scale="mad")
        assert "did not vary" in found["abc"].attrs["flags"]
        assert abs(float(found["posterior"]["mu"].mean()) - DATA) < 0.3

    def test_errors(self):
        with pytest.raises(
            ValueError, match="distance_scale must be one of 'mad', 'learned', got 'sd'"
        ):
            sample(self.problem(), distance_scale="sd")
        with pytest.raises(ValueError, match="first batch of 30 simulations at least, it has 20"):
            proposal = amc.TreeProposal(batch_size=20)
            sample(self.problem(), distance_scale="mad", proposal=proposal)
