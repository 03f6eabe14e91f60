"""The objects behind the string arguments."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

import amc_pymc as amc

from amc_pymc.steps.settings import as_audits, as_proposals, as_proxy

SETTINGS = [
    amc.NormalRace,
    amc.BernsteinRace,
    amc.LilUCBRace,
    amc.ExactRace,
    amc.RandomWalkProposal,
    amc.SurrogateProposal,
    amc.TaylorProxy,
    amc.Audits,
]


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_public_values(kind):
    assert kind() == cloudpickle.loads(cloudpickle.dumps(kind())) and hash(kind()) == hash(kind())
    assert kind.__dataclass_params__.frozen
    assert getattr(amc, kind.__name__) is kind and kind.__name__ in amc.__all__


class TestProposals:
    @pytest.mark.parametrize("kind", [amc.RandomWalkProposal, amc.SurrogateProposal])
    @pytest.mark.parametrize("target", [0, 1, -0.1, 1.1, np.nan, np.inf, "0.5", None, True])
    def test_target_accept(self, kind, target):
        with pytest.raises((ValueError, TypeError), match=r"target_accept"):
            kind(target_accept=target)
        assert kind(target_accept=0.3).target_accept == 0.3


class TestTaylorProxy:
    @pytest.mark.parametrize("rows", [-1, 1.5, "all", None, True, np.nan])
    def test_exact_rows(self, rows):
        with pytest.raises((ValueError, TypeError), match=r"exact_rows"):
            amc.TaylorProxy(exact_rows=rows)

    @pytest.mark.parametrize("rows", [0, 100, "auto", np.int64(7)])
    def test_exact_rows_in_range(self, rows):
        assert amc.TaylorProxy(exact_rows=rows).exact_rows == rows

    @pytest.mark.parametrize("value", [0, -1, "x", None, 1.5, True])
    @pytest.mark.parametrize("name", ["max_dim", "subsample"])
    def test_counts(self, name, value):
        with pytest.raises((ValueError, TypeError), match=name):
            amc.TaylorProxy(**{name: value})


class TestAudits:
    @pytest.mark.parametrize("number", [-1, 1.5, True, "x", None, np.nan])
    def test_number(self, number):
        with pytest.raises((ValueError, TypeError), match=r"audits"):
            amc.Audits(number)

    @pytest.mark.parametrize("number", [0, 10, np.int64(10)])
    def test_number_in_range(self, number):
        assert amc.Audits(number).number == number

    @pytest.mark.parametrize("share", [0, -0.1, 1.1, np.nan, "x"])
    def test_share(self, share):
        with pytest.raises((ValueError, TypeError), match=r"max_share"):
            amc.Audits(max_share=share)

    @pytest.mark.parametrize("chains", [0, 2.5, None])
    def test_chains(self, chains):
        with pytest.raises((ValueError, TypeError), match="chains must be"):
            amc.Audits(chains=chains)

    @pytest.mark.parametrize("share", [0.01, 1, 1.0, None])
    def test_share_in_range(self, share):
        assert amc.Audits(max_share=share).max_share == share


class TestFromArguments:
    def test_proposals(self):
        walk, surrogate = amc.RandomWalkProposal(), amc.SurrogateProposal()
        assert as_proposals("auto", amc.TaylorProxy()) == (walk, surrogate)
        assert as_proposals("auto", None) == (walk,)
        assert as_proposals("random_walk", None) == (walk,)
        assert as_proposals("surrogate", amc.TaylorProxy()) == (surrogate,)
        mine = amc.SurrogateProposal(target_accept=0.7)
        assert as_proposals(mine, None) == (mine,)

    def test_proxy(self):
        assert as_proxy("auto") == (amc.TaylorProxy(), False)
        assert as_proxy("taylor") == (amc.TaylorProxy(), True)
        assert as_proxy(None) == (None, False)
        mine = amc.TaylorProxy(max_dim=3)
        assert as_proxy(mine) == (mine, True)

    def test_audits(self):
        assert as_audits(30) == amc.Audits(30)
        mine = amc.Audits(5, max_share=None)
        assert as_audits(mine) is mine
