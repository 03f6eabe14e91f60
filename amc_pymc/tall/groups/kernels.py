"""Loops over groups, bound to a model's generated functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from amc_pymc.engine.machine import Printed
from amc_pymc.tall.groups import effects, loops, many
from amc_pymc.tall.groups.layout import KINKED
from amc_pymc.tall.groups.table import tabulated_rewards

__all__ = ["GroupKernels"]


class GroupKernels:
    """Compiled loops over a model's groups of rows.

    The loops are those of :mod:`amc_pymc.tall.groups.loops`, :mod:`amc_pymc.tall.groups.many` and
    :mod:`amc_pymc.tall.groups.effects`.

    Parameters
    ----------
    printed : Printed
        Result of :func:`~amc_pymc.tall.groups.printed_groups`.
    kinked : bool
        Whether log-likelihoods have kinks, so that curvature is measured by differences of gradients.
    """

    #: Compiled functions whose last argument is :attr:`program`.
    rewards, state_rewards = staticmethod(loops.rewards), staticmethod(loops.state_rewards)
    tabulated_rewards = staticmethod(tabulated_rewards)

    def __init__(self, printed: Printed, kinked: bool = False):
        self.program, _ = printed.arrays
        self.program[KINKED] = kinked
        bound: Callable[..., Callable[..., Any]] = partial(partial, program=self.program)
        self.values, self.sums = bound(loops.values), bound(loops.sums)
        self.curvatures = bound(loops.curvatures)
        self.totals, self.total_gradients = bound(many.totals), bound(many.total_gradients)
        self.complete, self.row_values = bound(effects.complete), bound(effects.row_values)
        self.draw_effects = bound(effects.draw_effects)
