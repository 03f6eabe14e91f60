"""Marginal log-likelihoods of groups, with local effects integrated out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from amc_pymc.engine.machine import Printed
from amc_pymc.tall.groups import loops
from amc_pymc.tall.groups.nodes import Nodes, hermite_nodes, state_nodes, wide_nodes
from amc_pymc.tall.groups.printed import ROWS_BEYOND, GroupProgram, printed_groups

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


class GroupKernels:
    """The loops of ``loops`` over a model's groups, bound to its generated functions.

    Parameters
    ----------
    printed : Printed
        Result of :func:`printed_groups`.
    """

    #: Compiled function whose last argument is :attr:`program`.
    rewards = staticmethod(loops.rewards)

    def __init__(self, printed: Printed):
        self.program, _ = printed.arrays
        bound: Callable[..., Callable[..., Any]] = partial(partial, program=self.program)
        self.values, self.sums = bound(loops.values), bound(loops.sums)
        self.complete, self.draw_effects = bound(loops.complete), bound(loops.draw_effects)
