"""Marginal log-likelihoods of groups, with their local effects integrated out."""

from amc_pymc.marginals.nodes import Nodes, hermite_nodes, state_nodes
from amc_pymc.marginals.printed import ROWS_BEYOND, SHARED_LOOPS, GroupProgram, printed_source

__all__ = [
    "ROWS_BEYOND",
    "SHARED_LOOPS",
    "GroupProgram",
    "Nodes",
    "hermite_nodes",
    "printed_source",
    "state_nodes",
]
