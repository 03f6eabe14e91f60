"""Marginal log-likelihoods of groups, with local effects integrated out."""

from __future__ import annotations

from amc_pymc.tall.groups import loops
from amc_pymc.tall.groups.nodes import Nodes, hermite_nodes, state_nodes, wide_nodes
from amc_pymc.tall.groups.printed import ROWS_BEYOND, GroupProgram, printed_groups

__all__ = [
    "ROWS_BEYOND",
    "GroupProgram",
    "Nodes",
    "hermite_nodes",
    "loops",
    "printed_groups",
    "state_nodes",
    "wide_nodes",
]
