"""Argument checks shared by many functions."""

import math

import numpy as np


def boolean(name: str, value: object) -> bool:
    """Return a boolean, or raise an error that names the argument.

    Examples
    --------
    >>> from amc_pymc.arguments import boolean
    >>> boolean("rotate", False)
    False
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def positive_int(name: str, value: object, least: int = 1) -> int:
    """Return an integer of at least ``least``, or raise an error that names the argument.

    Examples
    --------
    >>> from amc_pymc.arguments import positive_int
    >>> positive_int("draws", 3)
    3
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        whole = isinstance(value, float | np.floating) and float(value).is_integer()
        hint = f"; write {int(value)}" if whole else ""  # type: ignore[call-overload]
        raise TypeError(f"{name} must be an integer, got {value!r}{hint}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def positive_or_none(name: str, value: object) -> float | None:
    """Return a positive, finite number or None, or raise an error that names the argument.

    Examples
    --------
    >>> from amc_pymc.arguments import positive_or_none
    >>> positive_or_none("tolerance", 2), positive_or_none("tolerance", None)
    (2.0, None)
    """
    found = _number_or_none(name, value)
    if found is not None and not 0.0 < found < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return found


def share_or_none(name: str, value: object, *, whole: bool = False) -> float | None:
    """Return a number in (0, 1), with ``whole`` in (0, 1], or None, or raise an error that names the argument.

    Examples
    --------
    >>> from amc_pymc.arguments import share_or_none
    >>> share_or_none("min_acceptance", 0.5)
    0.5
    """
    found = _number_or_none(name, value)
    if found is not None and not (0.0 < found < 1.0 or (whole and found == 1.0)):
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}.")
    return found


def _number_or_none(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number or None, got {value!r}.")
    return float(value)
