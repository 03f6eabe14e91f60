"""Estimators in whatever form they are given."""

import numpy as np
import pytest

from amc_pymc.bandits.arms import ArmError, as_arms, draw

RNG = np.random.default_rng(1)


class Batch:
    """Uniform values, costs and one control on request."""

    def __init__(self, give="values", **attributes):
        self.give = give
        self.__dict__.update(attributes)

    def sample(self, n, rng):
        x = rng.random(n)
        if self.give == "values":
            return x
        if self.give == "costs":
            return x, np.full(n, 2.0)
        return x, None, x[:, None] + 1.0


def test_names_of_a_mapping_and_of_a_sequence():
    def first(rng):
        return 1.0

    assert [a.name for a in as_arms({"a": first, "b": first})] == ["a", "b"]
    assert [a.name for a in as_arms([first, lambda rng: 1.0])] == ["first", "arm_1"]
    assert [a.name for a in as_arms([first, first])] == ["first_0", "first_1"]


@pytest.mark.parametrize(
    ("arms", "error", "match"),
    [
        ({}, ValueError, "arms is empty"),
        ([], ValueError, "arms is empty"),
        (3, TypeError, "mapping or a sequence"),
        ("ab", TypeError, "mapping or a sequence"),
        ([1.0], TypeError, "arm 'arm_0' must be a callable"),
        ({"x": Batch(scale="exp")}, ValueError, "scale of arm 'x'"),
        ({"x": Batch(cost=-1.0)}, ValueError, "cost of arm 'x' must be positive"),
        ({"x": Batch(cost=0.0)}, ValueError, "cost of arm 'x' must be positive"),
        ({"x": Batch(cost=np.nan)}, ValueError, "cost of arm 'x' must be positive"),
        ({"x": Batch(cost=-np.inf)}, ValueError, "cost of arm 'x' must be positive.*-inf"),
        ({"x": Batch(cost="dear")}, ValueError, "cost of arm 'x' must be positive.*'dear'"),
        ({"x": Batch(control_means=[np.nan])}, ValueError, "control_means of arm 'x'"),
        ({"x": Batch(), "y": Batch(scale="log")}, ValueError, "one scale.*'y': 'log'"),
    ],
)
def test_bad_arms(arms, error, match):
    with pytest.raises(error, match=match):
        as_arms(arms)


def test_options_of_both_kinds_of_estimators():
    def single(rng):
        return 1.0

    single.draws_per_job, single.cost, single.sample = 50, 2.0, "not a method"
    arms = as_arms([single, Batch(draws_per_job=50, cost=2.0)])
    assert [(a.batched, a.draws_per_job, a.cost) for a in arms] == [
        (False, 50, 2.0),
        (True, 50, 2.0),
    ]


def test_a_callable_is_called_once_per_draw():
    (arm,) = as_arms([lambda rng: rng.random()])
    found = draw(arm, 5, np.random.default_rng(2))
    assert np.array_equal(found.values, np.random.default_rng(2).random(5))
    assert np.array_equal(found.costs, np.ones(5))


@pytest.mark.parametrize(("give", "cost"), [("values", 1.0), ("costs", 2.0)])
def test_costs_of_a_batch(give, cost):
    (arm,) = as_arms([Batch(give)])
    assert np.array_equal(draw(arm, 3, RNG).costs, np.full(3, cost))


def test_known_cost_and_seconds():
    (arm,) = as_arms([Batch(cost=7.0)])
    assert draw(arm, 2, RNG).costs.tolist() == [7.0, 7.0]
    assert (draw(arm, 2, RNG, cost="cpu").costs > 0.0).all()


def test_controls_need_their_means():
    (arm,) = as_arms([Batch("controls", control_means=[1.5])])
    assert draw(arm, 4, RNG).controls.shape == (4, 1)
    (arm,) = as_arms([Batch("controls")])
    with pytest.raises(ArmError, match="1 controls and has none in control_means"):
        draw(arm, 4, RNG)
    (arm,) = as_arms([Batch("values", control_means=[1.5])])
    with pytest.raises(ArmError, match="has control_means and returned no controls"):
        draw(arm, 4, RNG)


@pytest.mark.parametrize(
    ("values", "scale", "match"),
    [
        ([1.0, np.nan], "natural", "'x' returned nan"),
        ([1.0, np.inf], "natural", "'x' returned inf"),
        ([1.0, -np.inf], "natural", "'x' returned -inf"),
        ([1.0, np.inf], "log", "'x' returned inf"),
        ([1.0], "natural", r"shape \(1,\)"),
        ([[1.0], [2.0]], "natural", r"shape \(2, 1\)"),
    ],
)
def test_bad_values_of_a_batch(values, scale, match):
    arm = Batch(scale=scale)
    arm.sample = lambda n, rng: np.array(values)
    with pytest.raises(ArmError, match=match) as caught:
        draw(as_arms({"x": arm})[0], 2, RNG)
    assert caught.value.arm == "x"


@pytest.mark.parametrize("costs", [[1.0, -1.0], [1.0, 0.0], [1.0, np.nan], [1.0], [-np.inf, 1.0]])
def test_bad_costs_of_a_batch(costs):
    arm = Batch()
    arm.sample = lambda n, rng: (np.zeros(n), costs)
    with pytest.raises(ArmError, match="cost"):
        draw(as_arms([arm])[0], 2, RNG)


def counted(fail_at, how):
    def arm(rng):
        arm.n += 1
        if arm.n == fail_at:
            return how()
        return 1.0

    arm.n = 0
    return arm


def raises():
    raise ZeroDivisionError("no denominator")


@pytest.mark.parametrize(
    ("how", "match"),
    [
        (raises, "raised ZeroDivisionError: no denominator"),
        (lambda: np.nan, "returned nan"),
        (lambda: -np.inf, "returned -inf"),
        (lambda: "three", "raised ValueError"),
    ],
)
def test_an_error_names_the_draw(how, match):
    (arm,) = as_arms({"bad": counted(4, how)})
    with pytest.raises(ArmError, match=f"arm 'bad' {match}") as caught:
        draw(arm, 10, RNG)
    assert caught.value.draw == 3


def test_minus_infinity_is_a_zero_weight():
    arm = Batch(scale="log")
    arm.sample = lambda n, rng: np.full(n, -np.inf)
    assert draw(as_arms([arm])[0], 2, RNG).values.tolist() == [-np.inf] * 2
