"""Which arms are made, which are left out, and why."""

import dataclasses
import math

import numpy as np
import pytest

from amc_pymc.evidence import arms
from amc_pymc.evidence.arms import (
    ARMS,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
    make_portfolio,
)
from amc_pymc.evidence.mcmc import KERNELS, DiscreteMetropolis, Mixed, make_kernel
from amc_pymc.evidence.pilot import explore
from amc_pymc.mixtures import StudentTMixture
from tests.evidence.annealing.problems import (
    Counts,
    HalfPlane,
    LabelAndNumber,
)

HMC = make_kernel("hmc")
FITTED = ("importance_rqmc", "smc_reference")


@pytest.fixture(scope="module")
def counts():
    path = Counts((6.0, 3.0), (1.0, 4.0))
    return path, explore(path, HMC, np.random.default_rng(1))


@pytest.fixture(scope="module")
def discrete():
    kernel = Mixed(KERNELS["hmc"](coordinates=(1,)), DiscreteMetropolis((0,), ([0, 1, 2],)))
    path = LabelAndNumber()
    return path, explore(path, kernel, np.random.default_rng(2), fitted=False), kernel


def fitted_with(pilot, **changes):
    """A pilot run whose mixture is said to be another."""
    adapted = pilot.adapted._replace(**changes)
    return dataclasses.replace(pilot, adapted=adapted, relative_variance=adapted.relative_variance)


def make(path, pilot, kernel=HMC, seed=3, **settings):
    return make_portfolio(path, pilot, kernel, np.random.default_rng(seed), **settings)


def test_all_arms_when_they_are_asked_for(counts):
    path, pilot = counts
    found = make(path, pilot, names=ARMS[::-1], target=10.0, budget=1.0)
    assert list(found.arms) == list(ARMS[::-1])
    assert found.left_out == {}
    kinds = {name: type(arm) for name, arm in found.arms.items()}
    assert kinds == {
        "importance_rqmc": QuasiArm,
        "importance": ImportanceArm,
        "smc": SequentialArm,
        "smc_reference": SequentialArm,
    }
    assert found.arms["smc"].path is path
    assert found.arms["smc"].ladder is pilot.ladder
    arm = found.arms["smc_reference"]
    assert arm.path.joint is path
    assert arm.path.reference is pilot.reference
    assert arm.ladder is not pilot.ladder
    for name in ("smc", "smc_reference"):
        arm = found.arms[name]
        heights = np.interp(arm.betas, arm.ladder.betas, arm.ladder.heights)
        np.testing.assert_allclose(np.diff(heights), heights[-1] / (len(arm.betas) - 1))
    assert len(found.arms["smc"].betas) - 1 >= pilot.ladder.barrier


def test_a_path_from_the_reference_is_only_made_when_it_is_needed(counts, monkeypatch):
    path, pilot = counts
    climbed = []
    climb = arms.climb
    monkeypatch.setattr(arms, "climb", lambda *a, **k: climbed.append(1) or climb(*a, **k))
    for settings in (
        {"names": ["smc", "importance"]},
        {"names": []},
        {},  # the reference is good
    ):
        found = make(path, pilot, **settings)
    assert not climbed
    assert "good enough" in found.left_out["smc_reference"]
    make(path, pilot, names=["smc_reference"])
    assert len(climbed) == 1
    make(path, fitted_with(pilot, relative_variance=10.0))
    assert len(climbed) == 2


def test_a_good_reference_leaves_little_to_anneal(counts):
    path, pilot = counts
    found = make(path, pilot)
    assert list(found.arms)[:2] == ["importance_rqmc", "importance"]
    assert {*found.arms, *found.left_out} == set(ARMS)
    assert not {*found.arms} & {*found.left_out}
    assert "expected to need" in found.left_out["smc"]
    for reason in found.left_out.values():
        assert "nan" not in reason


@pytest.mark.parametrize("variance", [1e4, math.inf])
def test_a_bad_reference_is_not_drawn_from(counts, variance):
    path, pilot = counts
    found = make(path, fitted_with(pilot, relative_variance=variance))
    assert not {"importance", "importance_rqmc"} & {*found.arms}
    assert "smc_reference" in found.arms
    assert {*found.arms, *found.left_out} == set(ARMS)


def test_expensive_arms_are_left_out_when_the_target_is_loose(counts):
    """Three draws of theirs cost far more than the best arm needs altogether."""
    path, pilot = counts
    bad = fitted_with(pilot, relative_variance=10.0)
    loose, strict = (make(path, bad, target=t) for t in (0.3, 1e-4))
    assert "smc" in loose.left_out
    assert set(loose.arms) <= set(strict.arms)
    assert "importance" in loose.arms
    assert list(make(path, bad, target=0.3, names=["smc"]).arms) == ["smc"]


def test_expensive_arms_are_left_out_when_the_budget_is_small(counts):
    path, pilot = counts
    bad = fitted_with(pilot, relative_variance=10.0)
    rich, poor = (make(path, bad, target=1e-4, budget=b) for b in (math.inf, 2e4))
    assert {"importance"} <= set(poor.arms) < set(rich.arms)
    left = {name: poor.left_out[name] for name in set(rich.arms) - set(poor.arms)}
    assert all("too much for max_cost" in reason for reason in left.values())
    assert make(path, bad, budget=1e-3).arms  # one is always left


def test_discrete_coordinates(discrete):
    path, pilot, kernel = discrete
    found = make(path, pilot, kernel)
    assert {*found.arms} == {"smc"}
    for name in FITTED:
        assert found.left_out[name] == "no reference: some variables are discrete"


@pytest.mark.parametrize("name", FITTED)
def test_no_arm_from_a_mixture_for_discrete_coordinates(discrete, name):
    path, pilot, kernel = discrete
    with pytest.raises(ValueError, match=f"arm '{name}' needs a reference.*use 'smc'"):
        make(path, pilot, kernel, names=["smc", name])


def test_a_reference_that_cannot_be_annealed_from(counts):
    """All of it is where the likelihood is zero: left out, unless asked for."""
    path = HalfPlane()
    pilot = explore(path, HMC, np.random.default_rng(8))
    far = StudentTMixture([1.0], [[-50.0, 0.0]], [np.eye(2)], math.inf)
    bad = fitted_with(pilot, mixture=far, relative_variance=math.inf)
    found = make(path, bad)
    assert "likelihood is zero at all of 512 draws" in found.left_out["smc_reference"]
    assert "smc" in found.arms
    with pytest.raises(ValueError, match="likelihood is zero at all"):
        make(path, bad, names=["smc_reference"])


def test_annealing_from_the_prior_pays_for_what_is_impossible(counts):
    """However short the path: of 1000 weights 999 are zero."""
    path, pilot = counts
    ladder = dataclasses.replace(pilot.ladder, heights=pilot.ladder.heights * 1e-9, possible=0.001)
    found = make(path, dataclasses.replace(pilot, ladder=ladder))
    assert list(found.arms)[:2] == ["importance_rqmc", "importance"]
    assert "smc" in found.left_out


def test_expected_costs_of_a_draw():
    path, kernel = Counts((6.0, 3.0), (1.0, 4.0)), make_kernel("slice")
    pilot = explore(path, kernel, np.random.default_rng(6), fitted=False)
    arm = make(path, pilot, kernel, names=["smc"]).arms["smc"]
    _, costs = arm.sample(2, np.random.default_rng(7))
    one = arms.expected_cost(kernel, pilot.ladder, len(arm.betas) - 2, arm.n_moves)
    assert one * arm.n_particles == pytest.approx(costs.mean(), rel=0.15)
