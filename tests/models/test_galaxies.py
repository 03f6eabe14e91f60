"""The galaxy mixtures: the frozen references by quadrature, by annealed particles, and as Neal prints them."""

import pytest

from models.galaxies import FROZEN, galaxy_scores, log_evidence_of_two
from models.normal_scores import sampled_evidence

NEAL = {(2, True): -239.764, (3, True): -226.803, (3, False): -226.791}


def test_values_of_neal():
    for case, printed in NEAL.items():
        assert FROZEN[case].error < 5e-4
        assert abs(FROZEN[case].log_evidence - printed) < 0.015


@pytest.mark.slow
def test_two_components_by_quadrature():
    assert abs(log_evidence_of_two() - FROZEN[2, True].log_evidence) < 3e-5


QUICK = {"particles": 512, "n_components": 6, "log2_points": 8, "replicates": 8}
LONG = {"n_components": 12, "log2_points": 11, "replicates": 8}


@pytest.mark.parametrize(
    ("case", "options"),
    [((3, True), QUICK), *(pytest.param(c, LONG, marks=pytest.mark.slow) for c in FROZEN)],
)
def test_sampled_evidence(case, options):
    """Particles reach all relabellings by themselves."""
    found = sampled_evidence(galaxy_scores(*case), **options, seed=9)
    assert found.error < 0.01
    assert abs(found.log_evidence - FROZEN[case].log_evidence) < 4.0 * found.error
