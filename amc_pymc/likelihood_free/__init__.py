"""Likelihood-free inference: simulators as problems, ABC-Tree, MAP-Tree and regression adjustment.

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*.
"""

from amc_pymc.likelihood_free.partition import Partition, cut_boxes, shrunk_rates, whole_cube
from amc_pymc.likelihood_free.proposal import UTILITIES, best_proposal, draws_per_simulation
from amc_pymc.likelihood_free.trees import Cart, Partitioner

__all__ = [
    "UTILITIES",
    "Cart",
    "Partition",
    "Partitioner",
    "best_proposal",
    "cut_boxes",
    "draws_per_simulation",
    "shrunk_rates",
    "whole_cube",
]
