"""Checks of arguments that many functions share."""

import numpy as np

__all__ = ["positive_int"]


def positive_int(name: str, value: object) -> int:
    """A count of at least one, or an error that names the argument.

    Examples
    --------
    >>> from amc_pymc.arguments import positive_int
    >>> positive_int("draws", 3)
    3
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)
