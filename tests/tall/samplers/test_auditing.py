import functools
import math

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from plain_races import without_control_variate
from pymc.stats.convergence import SamplerWarning

import amc_pymc as amc

from amc_pymc.flags import flags_of_bits
from amc_pymc.results import clopper_pearson
from amc_pymc.tall.racing import b_normal
from amc_pymc.tall.samplers.chain import Auditor, AuditTally, Log, log_decision

N_ROWS = 2_000


@functools.cache
def model():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS, 2))
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [1.0, -0.5]))
    with pm.Model() as out:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=X @ b, observed=y.astype(int))
    return out


@functools.cache
def plain_step():
    return without_control_variate(
        amc.RacingMetropolis(model=model(), race="normal", batch_size=20)
    )


def sample(audits, draws=600, chains=2, seed=5, transitions=1, race=None, **kwargs):
    audits = amc.Audits(audits, max_share=None) if isinstance(audits, int) else audits
    step = plain_step()
    race = race or step.sampler.race
    settings = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    with model():
        return pm.sample(
            draws,
            tune=200,
            step=step.replace(audits=audits, transitions=transitions, race=race),
            chains=chains,
            cores=1,
            random_seed=seed,
            **{**settings, **kwargs},
        )


class CarelessRace(amc.NormalRace):
    """A bound that is far too small, although it promises delta."""

    def rule(self, *args, **kwargs):
        out = super().rule(*args, **kwargs)
        b = b_normal(self.delta, self.batch_size / N_ROWS)
        return out._replace(sd_factor=out.sd_factor * 0.2 / b)


# --- through pm.sample ----------------------------------------------------------------------------


@pytest.mark.parametrize(("audits", "expected"), [(7, 7), (600, 600)])
def test_every_audit_asked_for_is_made(audits, expected):
    idata = sample(audits)
    table = amc.decision_error(idata)
    assert table.loc[0, "audited"] == table.loc[1, "audited"] == expected
    stats = idata.sample_stats
    read = stats["race_audit_rows"].values
    assert np.all(read % N_ROWS == 0)
    assert np.all(read <= N_ROWS * stats["race_audited"].values)


def test_audits_do_not_change_the_draws():
    # Twenty audits leave less room in the log than there are decisions.
    without, few, some = (sample(n) for n in (0, 20, 200))
    for other in (few, some):
        np.testing.assert_array_equal(without.posterior["b"].values, other.posterior["b"].values)
    for name in ("race_rows", "accepted"):
        np.testing.assert_array_equal(without.sample_stats[name], some.sample_stats[name])


def test_the_table_agrees_with_the_statistics():
    idata = sample(200)
    stats = idata.sample_stats
    table = amc.decision_error(idata)
    for chain in (0, 1):
        audited = int(stats["race_audited"].sel(chain=chain).sum())
        wrong = int(stats["race_wrong"].sel(chain=chain).sum())
        line = table.loc[chain]
        assert (line["audited"], line["wrong"], line["delta"]) == (audited, wrong, 0.05)
        assert line["error"] == wrong / audited
        assert (line["ci_low"], line["ci_high"]) == clopper_pearson(wrong, audited)
        assert line["rows"] == pytest.approx(stats["race_rows"].sel(chain=chain).mean().item())
    assert table.loc["all", "wrong"] == stats["race_wrong"].sum()


def test_good_decisions_give_no_warning():
    idata = sample(600, keep_warning_stat=True)
    assert amc.decision_error(idata).loc["all", "ci_low"] < 0.05
    assert all(w is None for w in idata.sample_stats["warning"].values.ravel())


def test_bad_decisions_give_a_warning(caplog):
    race = CarelessRace(batch_size=20)
    idata = sample(300, chains=1, race=race, quiet=False, keep_warning_stat=True)
    wrong, audited = (int(idata.sample_stats[f"race_{k}"].sum()) for k in ("wrong", "audited"))
    assert clopper_pearson(wrong, audited)[0] > 0.05
    found = [w for w in idata.sample_stats["warning"].values.ravel() if w is not None]
    assert len(found) == 1
    assert isinstance(found[0], SamplerWarning)
    assert f"{wrong} of {audited} audited decisions were wrong" in found[0].message
    assert "audited decisions were wrong" in caplog.text
    flags = idata.sample_stats["race_flags"].values[0]
    assert flags_of_bits(flags[-1]) == ["wrong_decisions"]
    assert flags_of_bits(flags[:-1]) == []


# --- the auditor itself ---------------------------------------------------------------------------


def logged(number, decisions, *, max_share=None, draws=1, seed=1):
    """An auditor whose log holds right decisions, their log ratios spread around the threshold."""
    sampler = replace(plain_step().sampler, audits=amc.Audits(number, max_share=max_share))
    densities, rng = sampler.prepared.densities, np.random.default_rng(seed)
    auditor = Auditor(sampler, draws, 2)
    kept = min(decisions, auditor.log.x.shape[0])
    auditor.log.x[:kept] = rng.normal(0, 0.05, size=(kept, 2)) + np.array([1.0, -0.5])
    auditor.log.other[:kept] = auditor.log.x[:kept] + rng.normal(0, 0.05, size=(kept, 2))
    exact = np.array(
        [densities.change(auditor.log.x[k], auditor.log.other[k]) for k in range(kept)]
    )
    ratio = rng.normal(0, 3, size=kept)
    auditor.log.subject[:kept] = ratio - exact
    auditor.log.outcome[:kept] = ratio > 0
    auditor.log.read[:kept] = 40
    auditor.log.seen[0] = decisions
    auditor.draw = draws
    return auditor, sampler


def test_right_decisions_are_confirmed_and_flipped_ones_found():
    for flipped in (0, 1, 13, 30):
        auditor, sampler = logged(30, 30)
        auditor.log.outcome[:flipped] = 1.0 - auditor.log.outcome[:flipped]
        tally = auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(1))
        assert tally == AuditTally(30, flipped, 30 * N_ROWS)
        assert auditor.tally == tally
        assert auditor.log.seen[0] == 0


def test_decisions_that_read_everything_cost_nothing_and_are_right():
    auditor, sampler = logged(30, 30)
    auditor.log.read[:] = N_ROWS
    tally = auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(1))
    assert tally == AuditTally(30, 0, 0)


def test_the_budget_stops_the_audits():
    auditor, sampler = logged(100, 100, max_share=0.1)
    auditor.spent = 2.0 * 17.5 * N_ROWS / 0.1
    tally = auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(1))
    assert tally == AuditTally(17, 0, 17 * N_ROWS)
    auditor.log.seen[0] = 100
    again = auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(1))
    assert again == AuditTally(0, 0, 0), "what is spent is spent"
    auditor.spend(1e9)
    tally = auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(1))
    assert auditor.tally.audited == 100


@pytest.mark.parametrize("chains", [1, 4, 25])
def test_all_chains_together_audit_for_the_share_of_the_setup(chains):
    audits, sampler = amc.Audits(10, max_share=0.5, chains=chains), plain_step().sampler
    setups = [replace(sampler.prepared, rows_spent=rows) for rows in (0, 1e9)]
    samplers = [replace(sampler, audits=audits, prepared=each) for each in setups]
    auditors = [[Auditor(each, 0, 1) for each in samplers] for _ in range(chains)]
    assert sum(after.spent - before.spent for before, after in auditors) == pytest.approx(1e9)


def test_audited_decisions_are_a_uniform_sample():
    chosen = []
    for seed in range(150):
        auditor, sampler = logged(40, 160)
        sampler.passes = lambda log, k: chosen.append(k) or 0
        auditor.run(sampler, sampler.prepared.surrogate, np.random.default_rng(seed))
    assert len(chosen) == 150 * 40
    uses = np.bincount(chosen, minlength=160)
    z = (uses - 150 / 4) / math.sqrt(150 / 4 * 3 / 4)
    assert abs(np.sum(z**2) - 160) < 4 * math.sqrt(2 * 160)


def test_the_reservoir_is_uniform_over_the_decisions_of_a_block():
    """Draws of a chain are numbered by their decision; each is as likely to be kept."""
    counts = np.zeros(50)
    rng = np.random.default_rng(4)
    for _ in range(500):
        log = Log(*np.zeros((2, 8, 1)), *np.zeros((3, 8)), np.zeros(1, np.int64))
        for k in range(50):
            x = np.full(1, float(k))
            log_decision(log, x, -x, 0.1 * k, float(k % 2), float(k), rng)
        kept = log.read.astype(int)
        assert np.unique(kept).size == 8
        np.testing.assert_array_equal(log.x[:, 0], kept)
        np.testing.assert_array_equal(log.other[:, 0], -kept)
        np.testing.assert_allclose(log.subject, 0.1 * kept)
        np.testing.assert_array_equal(log.outcome, kept % 2)
        counts[kept] += 1
    expected = 500 * 8 / 50
    assert abs(np.sum((counts - expected) ** 2) / expected / (1 - 8 / 50) - 49) < 4 * math.sqrt(98)
