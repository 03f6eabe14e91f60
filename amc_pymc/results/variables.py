"""Declared variables of results, and datasets that are checked against their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

#: NumPy dtypes by the name of a declared type.
_DTYPES: dict[str, Any] = {"float": np.float64, "int": np.int64, "bool": np.bool_, "text": np.str_}


@dataclass(frozen=True)
class Variable:
    """Declaration of a variable; ``unit`` is empty for pure numbers, ``scale`` is "log" for natural logarithms."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    scale: str
    meaning: str

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of the variable in a result."""
        found = {"units": self.unit, "scale": self.scale, "description": self.meaning}
        return {key: text for key, text in found.items() if text}

    @property
    def label(self) -> str:
        """Text for the axis of a plot: the meaning up to a comma, the unit if the meaning does not name it.

        Examples
        --------
        >>> from amc_pymc.results.tables import ABC, ANNEALING
        >>> ABC["ess_so_far"].label, ANNEALING["log_weight_path"].label
        ('effective draws so far', 'log of weight so far (nats)')
        """
        text = self.meaning.partition(",")[0]
        if self.scale == "log" and "log" not in text.split():
            text = f"log of {text}"
        return text if not self.unit or self.unit in text.split() else f"{text} ({self.unit})"

    def check(self, n_dims: int) -> None:
        """Raise a ValueError if the number of dimensions is not as declared."""
        if n_dims != len(self.dims):
            raise ValueError(f"{self.name} must have dims {self.dims}, got {n_dims} dimensions.")


#: Variables of a group by name.
type Table = dict[str, Variable]


def as_table(text: str) -> Table:
    """Return the variables of a table with a line for each: name, dims, dtype, unit, scale, meaning.

    Examples
    --------
    >>> from amc_pymc.results import as_table
    >>> as_table("ess | arm | float | draws | | effective draws")["ess"].dims
    ('arm',)
    """
    found = {}
    for line in text.strip().splitlines():
        name, dims, *others = (cell.strip() for cell in line.split("|"))
        found[name] = Variable(name, tuple(dims.split()), *others)
    return found


def declared_dataset(
    table: Table,
    values: Mapping[str, Any],
    coords: Mapping[Any, Any] | None = None,
    attrs: Mapping[Any, Any] | None = None,
) -> xr.Dataset:
    """Return values as a dataset with the declared dims and attributes.

    Raises
    ------
    KeyError, ValueError, TypeError
        If a variable is not declared, has other dimensions, or a type that does not fit.
    """
    data = {}
    for name, value in values.items():
        variable, array = table[name], np.asarray(value)
        variable.check(array.ndim)
        array = array.astype(_DTYPES[variable.dtype], casting="safe", copy=False)
        data[name] = (variable.dims, array, variable.attrs)
    return xr.Dataset(data, coords, attrs)


def described(data: xr.Dataset, table: Table) -> xr.Dataset:
    """Add the attributes of variables that are declared; others are those of the user's model."""
    for name in table.keys() & data.data_vars.keys():
        table[name].check(data[name].ndim)
        data[name].attrs |= table[name].attrs
    return data
