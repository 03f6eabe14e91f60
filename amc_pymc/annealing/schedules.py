"""Inverse temperatures of annealing runs."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from amc_pymc.arguments import positive_int

__all__ = ["Schedule", "make_schedule"]

Name = Literal["linear", "power", "geometric", "sigmoid", "adaptive"]
Schedule = Name | tuple[Name, float] | Sequence[float] | np.ndarray

#: Default numbers of the named schedules.
_DEFAULTS = {"power": 4.0, "geometric": 1e-4, "sigmoid": 4.0}


def make_schedule(
    schedule: Schedule, n_steps: int, *, barrier: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    r"""Make inverse temperatures from 0 to 1.

    With u = t / T for t = 0, ..., T:

    - "linear": u
    - ("power", c): :math:`u^c`, c = 4 by default
    - ("geometric", b): 0, then geometrically spaced from b to 1, b = 1e-4 by default
    - ("sigmoid", s): :math:`(\sigma(s (2u - 1)) - \sigma(-s)) / (\sigma(s) - \sigma(-s))` with the
      logistic function, s = 4 by default (Sohl-Dickstein & Culpepper 2012, arXiv:1205.1925)
    - "adaptive": equal steps of the barrier measured in a pilot run (Syed, Bouchard-Côté, Deligiannidis
      & Doucet 2022, doi:10.1111/rssb.12464)
    - an increasing sequence of T + 1 numbers from 0 to 1: used as given

    Parameters
    ----------
    schedule : str, tuple of str and float, or sequence of float
    n_steps : int
        Number of steps T. Ignored if the temperatures are given.
    barrier : (betas, heights), optional
        Inverse temperatures and the increasing barrier up to each; required for "adaptive".

    Returns
    -------
    array (T + 1,)

    Raises
    ------
    ValueError, TypeError
        If the schedule is unknown, its number is invalid or makes temperatures coincide, or given temperatures
        do not increase from 0 to 1.

    Examples
    --------
    >>> from amc_pymc.annealing import make_schedule
    >>> make_schedule(("power", 2), 4)
    array([0.    , 0.0625, 0.25  , 0.5625, 1.    ])
    >>> make_schedule(("geometric", 0.01), 3)
    array([0.  , 0.01, 0.1 , 1.  ])
    """
    name, number = _parsed(schedule)
    if name is None:
        return _given(number)
    u = np.linspace(0.0, 1.0, positive_int("n_steps", n_steps) + 1)
    if name == "linear":
        return u
    if name == "adaptive":
        if barrier is None:
            raise ValueError("schedule 'adaptive' needs the barrier that a pilot run measures.")
        betas, heights = barrier
        out = np.interp(u * heights[-1], heights, betas)
    elif name == "power":
        out = u**number
    elif name == "geometric":
        out = np.concatenate([[0.0], np.geomspace(number, 1.0, len(u) - 1)]) if len(u) > 2 else u
    else:
        edge = math.tanh(0.5 * number)
        out = 0.5 * (1.0 + np.tanh(0.5 * number * (2.0 * u - 1.0)) / edge)
    out[0], out[-1] = 0.0, 1.0
    if not _increasing(out):
        raise ValueError(
            f"schedule {schedule!r} has temperatures closer to each other than floating-point numbers are; "
            "its number is too large or too small."
        )
    return out


def _parsed(schedule: Any) -> tuple[str | None, Any]:
    """Return the name and number of a schedule, or None and its temperatures."""
    if isinstance(schedule, str):
        name, number = schedule, _DEFAULTS.get(schedule)
    elif isinstance(schedule, tuple) and len(schedule) == 2 and isinstance(schedule[0], str):
        name, number = schedule
    else:
        return None, schedule
    if name not in ("linear", "adaptive", *_DEFAULTS):
        raise ValueError(
            "schedule must be 'linear', 'power', 'geometric', 'sigmoid', 'adaptive', a pair such as "
            f"('power', 4), or increasing numbers from 0 to 1, got {schedule!r}."
        )
    if isinstance(schedule, tuple):
        _check_number(name, number)
    return name, number


def _check_number(name: str, number: Any) -> None:
    if name not in _DEFAULTS:
        raise ValueError(f"schedule {name!r} takes no number, got {number!r}.")
    if isinstance(number, bool) or not isinstance(number, int | float | np.number):
        raise TypeError(f"schedule {name!r} takes a number, got {number!r}.")
    if not 0.0 < number < math.inf or (name == "geometric" and number >= 1.0):
        span = "between 0 and 1" if name == "geometric" else "positive and finite"
        raise ValueError(f"the number of schedule {name!r} must be {span}, got {number!r}.")


def _given(schedule: Any) -> np.ndarray:
    try:
        betas = np.array(schedule)
    except ValueError:
        betas = np.empty(0)
    numbers = betas.dtype.kind in "iuf" and betas.ndim == 1 and betas.size > 1
    if not numbers or not _increasing(betas) or betas[0] != 0.0 or betas[-1] != 1.0:
        raise ValueError(
            "schedule must be a name, a pair such as ('power', 4), or numbers that increase from 0 to "
            f"1, got {schedule!r}."
        )
    return betas.astype(float)


def _increasing(betas: np.ndarray) -> bool:
    return bool((np.diff(betas) > 0).all())
