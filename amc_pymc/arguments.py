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


def positive_or_none(
    name: str, value: object, below: float = math.inf, *, closed: bool = False
) -> float | None:
    """Return a positive number below a bound, with ``closed`` at most that, or None.

    Raise an error that names the argument otherwise. The bound is 1, for shares, or infinite.

    Examples
    --------
    >>> from amc_pymc.arguments import positive_or_none
    >>> positive_or_none("tolerance", 2), positive_or_none("tolerance", None)
    (2.0, None)
    >>> positive_or_none("prior_share", 1, 1.0, closed=True)
    1.0
    """
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise TypeError(f"{name} must be a number or None, got {value!r}.")
    if not (0.0 < value < below or (closed and value == below)):
        wanted = "positive and finite" if below == math.inf else f"between 0 and {below:g}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
    return float(value)
