"""Declared variables of results, and datasets that are checked against their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["Table", "Variable", "as_table", "declared_dataset", "described"]

#: Kinds of NumPy dtypes by the name of a declared type.
_KINDS = {"float": "f", "int": "iu", "bool": "b", "text": "UO"}


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

    def check(self, dims: tuple[Any, ...], dtype: np.dtype[Any]) -> None:
        """Raise a TypeError if dims or dtype are not as declared."""
        if dims != self.dims or dtype.kind not in _KINDS[self.dtype]:
            raise TypeError(
                f"{self.name} is declared as {self.dtype} with dims {self.dims}, got {dtype} with {dims}."
            )


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
    KeyError, TypeError
        If a variable is not declared, or has other dims or another type.
    """
    data = {}
    for name, value in values.items():
        variable, array = table[name], np.asarray(value)
        dims = variable.dims if array.ndim == len(variable.dims) else array.shape
        variable.check(dims, array.dtype)
        data[name] = (variable.dims, array, variable.attrs)
    return xr.Dataset(data, coords, attrs)


def described(data: xr.Dataset, table: Table) -> xr.Dataset:
    """Check variables that are declared, and add their attributes; others are those of the user's model."""
    for name in table.keys() & data.data_vars.keys():
        table[name].check(data[name].dims, data[name].dtype)
        data[name].attrs |= table[name].attrs
    return data
