"""Named tuples and dataclasses as arrays by name, as a journal stores them."""

from __future__ import annotations

import dataclasses
import importlib

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["packed", "unpacked"]

#: Sequences that are stored element by element.
_SEQUENCES = {"tuple": tuple, "list": list}


def packed(value: Any, name: str) -> dict[str, Any]:
    """Return arrays from which :func:`unpacked` makes the same value.

    Parameters
    ----------
    value : object
        None, a number, an array, or a tuple, list, named tuple or dataclass of these. Classes must be of this package.
    name : str
        Name of the value, with which all names of arrays begin.

    Examples
    --------
    >>> from amc_pymc.evidence.mcmc import Tuning
    >>> from amc_pymc.runs import packed, unpacked
    >>> arrays = packed([Tuning(0.5, np.ones(2)), None], "steps")
    >>> unpacked(arrays, "steps")
    [Tuning(size=0.5, scale=array([1., 1.])), None]
    """
    if value is None:
        return {}
    kind = type(value)
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        out: dict[str, Any] = {f"{name}.class": kind.__name__, f"{name}.size": len(value)}
        inside = {str(k): element for k, element in enumerate(value)}
    elif names := _fields(kind):
        out = {f"{name}.class": f"{kind.__module__}.{kind.__qualname__}"}
        inside = {field: getattr(value, field) for field in names}
    else:
        return {name: value}
    for field, part in inside.items():
        out |= packed(part, f"{name}.{field}")
    return out


def unpacked(arrays: Mapping[str, Any], name: str) -> Any:
    """Make a value from the arrays of :func:`packed`."""
    if f"{name}.class" not in arrays:
        found = np.asarray(arrays[name]) if name in arrays else None
        return found.item() if found is not None and found.ndim == 0 else found
    kind = str(arrays[f"{name}.class"])
    if kind in _SEQUENCES:
        size = int(arrays[f"{name}.size"])
        return _SEQUENCES[kind](unpacked(arrays, f"{name}.{k}") for k in range(size))
    cls = _class(kind)
    inside = {field: unpacked(arrays, f"{name}.{field}") for field in _fields(cls)}
    if not dataclasses.is_dataclass(cls):
        return cls(**inside)
    made = object.__new__(cls)  # not initialised: that may round its numbers once more
    for field, value in inside.items():
        object.__setattr__(made, field, value)
    return made


def _fields(cls: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(getattr(cls, "_fields", ()))


def _class(path: str) -> type[Any]:
    """Return a class of this package by its path."""
    module, _, name = path.rpartition(".")
    if module.split(".")[0] != __name__.split(".")[0]:
        raise ValueError(f"{path!r} is no class of this package")
    found: type[Any] = getattr(importlib.import_module(module), name)
    if not _fields(found):
        raise ValueError(f"{path!r} has no fields")
    return found
