"""Tree bandits over boxes of the unit cube, for simulators without a likelihood.

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*.
"""

from amc_pymc.abc_tree.cart import fit_cart
from amc_pymc.abc_tree.dyadic import halve
from amc_pymc.abc_tree.learning import Partitioner
from amc_pymc.abc_tree.partition import Partition, whole_cube
from amc_pymc.abc_tree.rates import shrunk_rates
from amc_pymc.abc_tree.utilities import UTILITIES, best_proposal, draws_per_simulation

__all__ = [
    "UTILITIES",
    "Partition",
    "Partitioner",
    "best_proposal",
    "draws_per_simulation",
    "fit_cart",
    "halve",
    "shrunk_rates",
    "whole_cube",
]
