"""Distances of likelihood-free samplers in units of a pilot batch."""

import pytest

#: About 1.5 % of the budget are left as effective draws, which is close to where few are told of.
pytestmark = pytest.mark.filterwarnings("ignore:.*independent draws:UserWarning")
