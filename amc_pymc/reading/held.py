"""Variables that a step reads but does not move, as data that change between its draws.

A step that integrates out the effects of one factor conditions on the effects of another one, which
may have thousands of levels. These are not among the coordinates x that it moves: rows read them from
columns of data, priors from a shared vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor

from pytensor.graph.replace import clone_replace

from amc_pymc.reading.layout import FlatLayout

__all__ = ["Held", "HeldColumn"]


class HeldColumn(NamedTuple):
    """Column of a data array (C, N), and the position of each of its entries in the held vector."""

    place: int
    positions: np.ndarray


class Held:
    """Values of the variables that a step does not move.

    Parameters
    ----------
    layout : FlatLayout
        Layout of the vector of values.

    Attributes
    ----------
    shared : shared vector
        The vector as a PyTensor shared variable.
    values : (H,) float array
        The vector; compiled functions read its memory, so change it in place only.
    """

    def __init__(self, layout: FlatLayout):
        self.layout = layout
        self.shared = pytensor.shared(np.full(layout.size, np.nan), name="held")

    @property
    def values(self) -> np.ndarray:
        """The vector of values, not a copy."""
        return self.shared.get_value(borrow=True, return_internal_type=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the held value variables."""
        return self.layout.names

    def take(self, point: Mapping[str, np.ndarray]) -> None:
        """Copy the values of a point."""
        self.values[:] = self.layout.ravel(point)

    def substitute(self, outputs: Sequence, value_vars: Sequence) -> list:
        """Return graphs in which entries of the vector replace held variables."""
        values = self.layout.split(self.shared)
        replace = {
            v: v.type.filter_variable(values[v.name], allow_convert=True)
            for v in value_vars
            if v.name in values
        }
        return clone_replace(list(outputs), replace, rebuild_strict=False)
