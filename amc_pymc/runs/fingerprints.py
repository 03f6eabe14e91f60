"""Fingerprints: what the numbers of a run depend on, in a form that can be stored and compared."""

from __future__ import annotations

import dataclasses
import hashlib

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Number of elements above which an array is identified by a digest.
_SMALL = 8


def fingerprint(value: Any, name: str = "fingerprint") -> Any:
    """Convert a value to JSON types; large arrays become shape, type and digest.

    Parameters
    ----------
    value : object
        Numbers, strings, None, arrays and dataclasses, and sequences and mappings of these. A
        model is told by values of its functions at fixed points, another object by its name, see :func:`name_of`.
    name : str
        Name of the value, for messages.

    Raises
    ------
    TypeError
        For values of other types.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.runs import fingerprint
    >>> fingerprint({"epsilon": np.float64(0.1), "shape": (2, 3)})
    {'epsilon': 0.1, 'shape': [2, 3]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if np.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return fingerprint(value.item(), name)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if value.size <= _SMALL:
            return fingerprint(value.tolist(), name)
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"shape": list(value.shape), "type": value.dtype.str, "content": content[:16]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"class": _path(type(value)), **fingerprint(fields, name)}
    if isinstance(value, Mapping):
        return {str(k): fingerprint(v, f"{name}[{k!r}]") for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [fingerprint(v, f"{name}[{i}]") for i, v in enumerate(value)]
    raise TypeError(f"{name} must be numbers, strings or arrays, got {value!r}.")


def name_of(thing: Any) -> str:
    """Return a name of a function, a class or an object that is the same in every process.

    Examples
    --------
    >>> from amc_pymc.runs import name_of
    >>> name_of(abs), name_of(name_of), name_of(("a", 3))
    ('builtins.abs', 'amc_pymc.runs.fingerprints.name_of', 'a, 3')
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, tuple | list):
        return ", ".join(map(name_of, thing))
    if hasattr(thing, "__qualname__"):
        return _path(thing)
    return _path(type(thing)) if " at 0x" in repr(thing) else repr(thing)


def _path(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"
