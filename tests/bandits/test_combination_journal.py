"""Checkpoints of amc.combine_estimators: resuming, reproducibility, refusals."""

import warnings

import numpy as np
import pytest

import amc_pymc as amc

from amc_pymc.bandits import UCB1, KnownRange
from amc_pymc.bandits.arms import Arm, Sample
from amc_pymc.bandits.recorded import Recorded


class Counting:
    """Normal values of mean 1, some with a control; the `stop`-th call is interrupted."""

    draws_per_job = 20

    def __init__(self, sd, controls=False, scale="natural", cost=None, stop=None, error=None):
        self.sd, self.scale, self.calls = sd, scale, 0
        self.stop, self.error = stop, error or KeyboardInterrupt
        if controls:
            self.control_means = [0.0]
        if cost is not None:
            self.cost = cost

    def sample(self, n, rng):
        self.calls += 1
        if self.calls == self.stop:
            raise self.error
        values = rng.normal(1.0, self.sd, n)
        if not hasattr(self, "control_means"):
            return values
        return values, None, (values - 1.0 + rng.normal(0.0, 0.1, n))[:, None]


def arms(stop=None, error=None, **settings):
    return {
        "sharp": Counting(0.5, stop=stop, error=error, **settings),
        "vague": Counting(3.0, **settings),
    }


def combined(used, checkpoint=None, *, seed=1, draws=2000, **settings):
    settings = {"rounds": 200} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of interruptions
        return amc.combine_estimators(
            used,
            draws=draws,
            checkpoint=checkpoint,
            random_seed=seed,
            progressbar=False,
            **settings,
        )


def assert_same(a, b):
    for group in ("estimate", "arms", "rounds", "pulls"):
        for name, values in a[group].data_vars.items():
            np.testing.assert_array_equal(values, b[group][name], err_msg=f"{group}/{name}")


@pytest.mark.parametrize(
    "settings",
    [{}, {"controls": True}, {"scale": "log"}, {"cost": 2.0}],
    ids=["natural", "controls", "log", "costs"],
)
def test_an_interrupted_run_resumes(tmp_path, settings):
    more = {"policy": "ucbcv"} if "controls" in settings else {}
    whole_arms = arms(**settings)
    whole = combined(whole_arms, **more)
    part = combined(arms(stop=25, **settings), tmp_path / "run", **more)
    assert part.attrs["flag_names"].startswith("interrupted")
    again = arms(**settings)
    assert_same(whole, combined(again, tmp_path / "run", **more))
    assert whole_arms["sharp"].calls == again["sharp"].calls + 24 - 1  # one job is a trial
    once_more = arms(**settings)
    assert_same(whole, combined(once_more, tmp_path / "run", **more))
    assert once_more["sharp"].calls == once_more["vague"].calls == 1


@pytest.mark.parametrize(
    "seed", [[3, 4], np.int64(7), None, "generator", np.random.SeedSequence(5)]
)
def test_seeds(tmp_path, seed):
    """Named seeds give the draws of a run without a checkpoint; others are stored."""
    first = np.random.default_rng(1) if seed == "generator" else seed
    stored = combined(arms(), tmp_path / "run", seed=first)
    if isinstance(seed, list | np.int64):
        assert_same(stored, combined(arms(), seed=seed))
    later = np.random.default_rng(2) if seed == "generator" else seed
    fresh = arms()
    assert_same(stored, combined(fresh, tmp_path / "run", seed=later))
    assert fresh["sharp"].calls == 1


def test_every_call_gets_further(tmp_path):
    """Rounds on disk do not count towards `max_time`."""
    whole, rounds = combined(arms()), []
    for _ in range(30):
        part = combined(arms(), tmp_path / "run", max_time=1e-9)
        rounds.append(part["rounds"].sizes["round"])
        if "stopped" not in part.attrs or not part.attrs["stopped"]:
            break
    assert len(rounds) > 2 and (np.diff(rounds) > 0).all(), rounds
    assert_same(whole, part)


def test_measured_costs_are_stored(tmp_path):
    settings = {"policy": "lcb", "cost": "cpu", "draws": 1500}
    combined(arms(stop=15), tmp_path / "run", **settings)
    stored = len(list((tmp_path / "run").glob("*.npz")))
    first = combined(arms(), tmp_path / "run", **settings)
    assert len(list((tmp_path / "run").glob("*.npz"))) > stored > 10
    assert_same(first, combined(arms(), tmp_path / "run", **settings))


def test_workers(tmp_path):
    whole = combined(arms())
    combined(arms(stop=25), tmp_path / "run")
    assert_same(whole, combined(arms(), tmp_path / "run", cores=2))


def test_a_mended_estimator_goes_on(tmp_path):
    broken = combined(arms(stop=25, error=ZeroDivisionError), tmp_path / "run")
    assert broken.attrs["flag_names"].startswith("arm_failed")
    assert_same(combined(arms()), combined(arms(), tmp_path / "run"))


@pytest.mark.parametrize(
    "used, settings, differs",
    [
        (arms(), {"draws": 7000}, "total was 2000, now it is 7000"),
        (arms(), {"policy": "ucb1"}, 'policy was "lcb", now it is "ucb1"'),
        (arms(cost=2.0), {}, "arms differs"),
        (arms(), {"seed": 2}, "with another random_seed"),
        ({"sharp": arms()["sharp"]}, {}, "arms differs"),
        (arms(), {"rounds": "doubling"}, 'rounds was 200, now it is "doubling"'),
    ],
    ids=["draws", "policy", "costs", "seed", "arms", "rounds"],
)
def test_other_runs_are_refused(tmp_path, used, settings, differs):
    combined(arms(), tmp_path / "run")
    with pytest.raises(ValueError, match=differs):
        combined(used, tmp_path / "run", **settings)


def test_draws_of_other_jobs_are_refused(tmp_path):
    """Settings of a policy object are not told; what it decides is compared."""
    for c, message in ((0.5, None), (8.0, "are stored where the policy asks for")):
        policy = UCB1(2, rewards=KnownRange(-400.0, 0.0), c=c)
        if message is None:
            combined(arms(), tmp_path / "run", policy=policy)
        else:
            with pytest.raises(ValueError, match=message):
                combined(arms(), tmp_path / "run", policy=policy)


def test_a_function_that_has_changed_is_refused(tmp_path):
    """Under the same name; one that does not use the generator cannot be compared."""

    def run(shift=0.0, own=None):
        used = {"a": Counting(0.5), "b": lambda rng: shift + (own or rng).normal()}
        folder = tmp_path / ("run" if own is None else "own")
        return combined(used, folder)

    run()
    with pytest.raises(ValueError, match=r"run': 0000\d\d.npz has other draws of arm 'b'"):
        run(shift=0.1)
    assert_same(run(), run())
    own = np.random.default_rng(1)
    assert_same(run(own=own), run(own=own))


@pytest.mark.parametrize(
    "checkpoint, error, match",
    [
        (3, TypeError, "checkpoint must be a path, got 3"),
        ("no/such/run", ValueError, "does not exist"),
    ],
)
def test_bad_checkpoints(checkpoint, error, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    used = arms()
    with pytest.raises(error, match=match):
        combined(used, checkpoint)
    assert used["sharp"].calls == 0


def test_without_a_journal_nothing_is_recalled():
    arm = Arm("a", abs)
    sample = Sample(np.ones(2), np.ones(2), None)
    record = Recorded()
    assert record.rounds == 0
    assert list(record.samples([(arm, 2)], 0, lambda jobs: [sample] * len(jobs))) == [sample]
