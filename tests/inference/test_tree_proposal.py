"""Options of proposals are checked where they are given."""

import dataclasses

import pytest

import amc_pymc as amc

from amc_pymc.abc_tree import whole_cube

BAD = [
    ({"partition": "oak"}, ValueError, "partition must be one of 'forest', .* or a callable, got 'oak'"),
    ({"partition": 3}, ValueError, "partition must be one of .* got 3"),
    ({"partition": lambda u: u}, TypeError, "partition=<lambda> must take four arguments"),
    ({"utility": "fun"}, ValueError, "utility must be one of 'ess', .* got 'fun'"),
    ({"utility": None}, ValueError, "utility must be one of .* got None"),
    ({"rates": "fun"}, ValueError, "rates must be one of 'mean', 'draw', got 'fun'"),
    ({"prior_share": 1.0}, ValueError, "prior_share must be between 0 and 1, got 1.0"),
    ({"prior_share": None}, TypeError, "prior_share must be a number .* got None"),
    ({"prior_share": "all"}, TypeError, "prior_share must be a number .* got 'all'"),
    ({"window": 0}, ValueError, "window must be at least 1, got 0"),
    ({"window": 1.5}, TypeError, "window must be an integer, got 1.5"),
    ({"rotate": "no"}, TypeError, "rotate must be .* got 'no'"),
    ({"honest": 3}, TypeError, "honest must be .* got 3"),
    ({"local": 1}, TypeError, "local must be .* got 1"),
    ({"local": True, "utility": "kl"}, ValueError, "local=True needs utility='ess', got utility='kl'"),
    ({"rotate": True, "partition": "cart"}, ValueError, "rotate=True needs several trees, got .*'cart'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        amc.TreeProposal(**options)


def test_options_reach_the_learner():
    def whole(u, kernel_values, before, rng):
        return whole_cube(u.shape[1])

    learner = amc.TreeProposal(
        partition=whole, local=False, utility="kl", prior_share=0.2, rates="draw", rotate=False, honest=True,
        window=3,
    ).learner()  # fmt: skip
    assert learner.partitioner is whole and learner.trees == 1
    assert (learner.local, learner.utility, learner.share) == (False, "kl", 0.2)
    assert (learner.beta_draws, learner.rotate, learner.honest, learner.window) == (
        True,
        False,
        True,
        3,
    )
    assert (
        not amc.TreeProposal(utility="kl").local and not amc.TreeProposal(partition="cart").rotate
    )
    plain = amc.TreeProposal().learner()
    assert plain.trees == 4 and plain.local and plain.rotate and not plain.honest


def test_it_is_frozen_and_equal_by_value():
    given = amc.TreeProposal(prior_share=0.1)
    assert given == amc.TreeProposal(prior_share=0.1) != amc.TreeProposal()
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.prior_share = 0.2
