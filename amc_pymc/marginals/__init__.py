"""Marginal log-likelihoods of groups, with local effects integrated out."""

from amc_pymc.marginals.kernels import GroupKernels
from amc_pymc.marginals.nodes import Nodes, hermite_nodes, state_nodes, wide_nodes
from amc_pymc.marginals.printed import ROWS_BEYOND, GroupProgram, printed_groups

__all__ = [
    "ROWS_BEYOND",
    "GroupKernels",
    "GroupProgram",
    "Nodes",
    "hermite_nodes",
    "printed_groups",
    "state_nodes",
    "wide_nodes",
]
