"""Names that the steps use, although PyMC does not promise them: what broke when a new version moves one."""

import inspect

import pymc as pm
import pytest

from pymc.step_methods import compound, state

SOURCES = [
    (compound.BlockedStep.__new__, "step.__newargs", "arguments are kept in pickles of steps"),
    (compound.BlockedStep.__new__, "default_blocked", "steps are not blocked by default"),
    (state.WithSamplingState, "_state_class", "states of steps leave out the chain"),
    (compound, "stats_dtypes_shapes", "statistics are not declared"),
]


@pytest.mark.parametrize(("place", "name", "broken"), SOURCES, ids=[s[1] for s in SOURCES])
def test_pymc_has_the_name(place, name, broken):
    assert name in inspect.getsource(place), f"PyMC {pm.__version__}: {broken}"


def test_what_is_left_out_of_pickles_is_an_attribute(normal_step):
    from amc_pymc.steps.racing_step import _OF_THE_MODEL

    assert set(_OF_THE_MODEL) <= set(vars(normal_step))
    state = normal_step.__reduce_ex__(5)[2]
    assert not set(_OF_THE_MODEL) & set(state)
