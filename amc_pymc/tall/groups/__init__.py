"""Marginal log-likelihoods of groups, with local effects integrated out."""

from amc_pymc.tall.groups.kernels import GroupKernels
from amc_pymc.tall.groups.nodes import (
    Nodes,
    even_nodes,
    hermite_nodes,
    lobatto_nodes,
    state_nodes,
    wide_nodes,
)
from amc_pymc.tall.groups.printed import ROWS_BEYOND, GroupProgram, printed_groups

__all__ = [
    "ROWS_BEYOND",
    "GroupKernels",
    "GroupProgram",
    "Nodes",
    "even_nodes",
    "hermite_nodes",
    "lobatto_nodes",
    "printed_groups",
    "state_nodes",
    "wide_nodes",
]
