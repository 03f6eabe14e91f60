"""Variables that a step reads but does not move, as data that change between its draws.

A step that integrates out the effects of one factor takes the effects of another one, which may
have thousands of levels, as they are. They are not among the coordinates x that it moves: rows find
them in columns of data, priors in a shared vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor

from pytensor.graph.replace import clone_replace

from amc_pymc.extract.layout import FlatLayout

__all__ = ["Held", "HeldColumn"]


class HeldColumn(NamedTuple):
    """A column of an array (C, N) of data and the place in the held vector of each of its entries."""

    place: int
    positions: np.ndarray


class Held:
    """Values of some variables.

    Parameters
    ----------
    layout : FlatLayout
        Of the vector that holds them.

    Attributes
    ----------
    shared : shared vector
        What graphs know them by.
    values : (H,) float array
        Read by compiled functions where it lies: change it in place only.
    """

    def __init__(self, layout: FlatLayout):
        self.layout = layout
        self.shared = pytensor.shared(np.full(layout.size, np.nan), name="held")

    @property
    def values(self) -> np.ndarray:
        """The vector itself."""
        return self.shared.get_value(borrow=True, return_internal_type=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Value variables that are held."""
        return self.layout.names

    def take(self, point: Mapping[str, np.ndarray]) -> None:
        """Take the values of a point."""
        self.values[:] = self.layout.ravel(point)

    def substitute(self, outputs: Sequence, value_vars: Sequence) -> list:
        """Graphs in which held variables are what the vector says."""
        values = self.layout.split(self.shared)
        replace = {
            v: v.type.filter_variable(values[v.name], allow_convert=True)
            for v in value_vars
            if v.name in values
        }
        return clone_replace(list(outputs), replace, rebuild_strict=False)
