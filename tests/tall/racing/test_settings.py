"""The objects behind the argument ``race``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amc_pymc.tall.racing import (
    BernsteinRace,
    ExactRace,
    LilUCBRace,
    NormalRace,
    as_race,
    rules,
)
from amc_pymc.tall.racing import normal as bounds

RACES = [NormalRace, BernsteinRace, LilUCBRace]
RANGED = [BernsteinRace, LilUCBRace]


def same_rule(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class TestRules:
    @pytest.mark.parametrize("variance", ["pairwise", "marginal"])
    @pytest.mark.parametrize("n_arms", [2, 7])
    def test_each_race_gives_the_rule_of_its_builder(self, n_arms, variance):
        n, zero = 30_000, {"zero_sd_decides": True}
        given = {"delta": 0.01, "batch_size": 100}
        for race, expected in (
            (
                NormalRace(0.01, 100, variance),
                rules.normal_rule(n, n_arms, **given, variance=variance, **zero),
            ),
            (
                BernsteinRace(0.01, 3.0, 100, variance),
                rules.bernstein_rule(
                    n, n_arms, **given, reward_range=3.0, variance=variance, **zero
                ),
            ),
            (
                LilUCBRace(0.01, [1.0, 5.0], 0.3, 0.1, 4),
                rules.lil_rule(
                    n,
                    n_arms,
                    delta=0.01,
                    reward_range=5.0,
                    beta=0.3,
                    epsilon=0.1,
                    rows_per_pull=4,
                ),
            ),
            (ExactRace(), rules.exact_rule(n, n_arms)),
        ):
            assert same_rule(race.rule(n, n_arms, **zero), expected)

    @pytest.mark.parametrize("kind", [*RACES, ExactRace])
    @pytest.mark.parametrize("n_raced", [0, 1, 2, 49, 50, 51, 10**6])
    @pytest.mark.parametrize("n_arms", [1, 2, 100])
    def test_any_number_of_rows_and_arms(self, kind, n_raced, n_arms):
        rule = kind().rule(n_raced, n_arms)
        assert rule.sizes[-1] == n_raced
        assert np.all(np.diff(rule.sizes) > 0)
        assert rule.sizes.shape == rule.sd_factor.shape == rule.range_factor.shape
        assert np.all(np.isfinite(rule.sd_factor[:-1]))
        assert kind().delta == (0.0 if kind is ExactRace else 0.05)

    def test_exact_reads_everything(self):
        for n_rows in (1, 50, 10**7):
            assert ExactRace().rule(n_rows, 2).sizes.tolist() == [n_rows]


class TestExpectedRows:
    def test_normal_is_that_of_the_bound(self):
        gaps = np.array([[0.0, 0.01], [0.1, math.inf]])
        b = bounds.b_normal(0.01, 100 / 50_000)
        expected = bounds.expected_rows(gaps, 50_000, 100, b)
        np.testing.assert_array_equal(NormalRace(0.01, 100).expected_rows(gaps, 50_000), expected)
        marginal = NormalRace(0.01, 100, "marginal").expected_rows(gaps, 50_000)
        assert np.all(marginal >= expected) and marginal[0, 1] > expected[0, 1]

    @pytest.mark.parametrize("kind", [*RACES, ExactRace])
    def test_falls_with_the_gap_and_stays_within_the_rows(self, kind):
        gaps = np.array([0.0, 1e-3, 0.1, 3.0, -3.0])
        for n_raced in (1, 40, 100_000):
            rows = kind().expected_rows(gaps, n_raced)
            assert rows.shape == gaps.shape
            assert np.all((rows > 0) & (rows <= n_raced))
            assert np.all(np.diff(rows[:4]) <= 0)
            assert rows[4] == rows[3]
        assert kind().expected_rows(0.1, 100).shape == ()

    def test_bernstein_by_hand(self):
        rule = BernsteinRace(reward_range=1.0).rule(10_000, 2)
        width = rule.sd_factor + 10.0 * rule.range_factor
        above, below = width[6] * (1 + 1e-9), width[6] * (1 - 1e-9)
        rows = BernsteinRace().expected_rows([above, below], 10_000)
        assert rows.tolist() == rule.sizes[6:8].tolist()


class TestArguments:
    @pytest.mark.parametrize("kind", RACES)
    @pytest.mark.parametrize(
        "delta", [0, 0.5, 1, -1, np.nan, np.inf, True, False, "0.05", None, 0.1j, [0.1]]
    )
    def test_delta_out_of_range(self, kind, delta):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 0.5\), got"):
            kind(delta=delta)

    @pytest.mark.parametrize("kind", RACES)
    @pytest.mark.parametrize("delta", [1e-6, 0.499, np.float64(0.05), np.float32(0.05)])
    def test_delta_in_range(self, kind, delta):
        assert kind(delta=delta).rule(1_000, 2).sizes[-1] == 1_000

    @pytest.mark.parametrize("kind", [NormalRace, BernsteinRace])
    @pytest.mark.parametrize(
        "batch_size", [0, 1, -1, 2.5, True, "50", None, np.nan, np.inf, [50], np.array([50, 60])]
    )
    def test_batch_size_out_of_range(self, kind, batch_size):
        with pytest.raises((ValueError, TypeError), match=r"batch_size must be .*got"):
            kind(batch_size=batch_size)

    @pytest.mark.parametrize("kind", [NormalRace, BernsteinRace])
    @pytest.mark.parametrize("batch_size", [2, 50, np.int64(50), np.int32(7)])
    def test_batch_size_in_range(self, kind, batch_size):
        assert kind(batch_size=batch_size).rule(1_000, 2).sizes[0] == batch_size

    @pytest.mark.parametrize("kind", [NormalRace, BernsteinRace])
    @pytest.mark.parametrize("variance", ["both", None, 1])
    def test_variance(self, kind, variance):
        with pytest.raises(ValueError, match=r"variance must be one of .*got"):
            kind(variance=variance)

    @pytest.mark.parametrize("kind", RANGED)
    @pytest.mark.parametrize(
        "reward_range", [0, -1.0, np.nan, np.inf, "1", True, [], [1.0, 0.0], {1.0}]
    )
    def test_reward_range(self, kind, reward_range):
        with pytest.raises(ValueError, match=r"reward_range must be .*got"):
            kind(reward_range=reward_range)

    def test_reward_range_of_each_arm(self):
        race = BernsteinRace(reward_range=np.array([1.0, 2.0, 3.0]))
        assert race.reward_range == (1.0, 2.0, 3.0)
        assert race.rule(100, 3).ranges.tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match=r"reward_range must be .* each of 2 arms"):
            race.rule(100, 2)

    @pytest.mark.parametrize("name", ["beta", "epsilon"])
    @pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "1", None])
    def test_parameters_of_lil_ucb(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must be finite and not negative, got"):
            LilUCBRace(**{name: value})

    @pytest.mark.parametrize("value", [0, 1.5, True, None])
    def test_rows_per_pull(self, value):
        with pytest.raises((ValueError, TypeError), match=r"rows_per_pull must be .*got"):
            LilUCBRace(rows_per_pull=value)


class TestAsRace:
    def test_by_name(self):
        assert as_race("normal", 0.1, 60) == NormalRace(0.1, 60)
        assert as_race("normal", 0.1, 60, "marginal") == NormalRace(0.1, 60, "marginal")
        assert as_race("bernstein", 0.1) == BernsteinRace(0.1)
        assert as_race("bernstein", 0.1, 60) == BernsteinRace(0.1, batch_size=60)
        assert as_race("lil_ucb", 0.1) == LilUCBRace(0.1)
        assert as_race("bernstein", batch_size=50) == BernsteinRace(batch_size=50)
        assert as_race("exact") == ExactRace()

    @pytest.mark.parametrize("kind", [*RACES, ExactRace])
    def test_an_object_is_taken_as_it_is(self, kind):
        race = kind()
        assert as_race(race) is race

    def test_arguments_that_agree(self):
        race = NormalRace(0.2, 70, "marginal")
        assert as_race(race, 0.2, 70, "marginal") is race

    @pytest.mark.parametrize(
        ("name", "value"), [("delta", 0.05), ("batch_size", 50), ("variance", "pairwise")]
    )
    def test_arguments_that_contradict(self, name, value):
        """Those that are the defaults of the step methods, too."""
        for race in (NormalRace(0.2, 60, "marginal"), ExactRace()):
            message = rf"{name}={value!r} contradicts race={type(race).__name__}\("
            with pytest.raises(ValueError, match=message):
                as_race(race, **{name: value})
        with pytest.raises(ValueError, match=f"{name}={value!r} has no meaning for race='exact'"):
            as_race("exact", **{name: value})

    @pytest.mark.parametrize("race", ["nrmal", 3, None, True, NormalRace, ["normal"]])
    def test_unknown(self, race):
        with pytest.raises(ValueError, match=r"race must be 'auto', 'normal'.*got"):
            as_race(race, 0.05, 50)

    def test_bad_values(self):
        with pytest.raises(ValueError, match="delta"):
            as_race("exact", 0.7, 50)
        with pytest.raises(TypeError, match="batch_size"):
            as_race("bernstein", 0.05, 2.5)
        with pytest.raises(ValueError, match="rows_per_pull"):
            as_race("lil_ucb", 0.05, 50)
