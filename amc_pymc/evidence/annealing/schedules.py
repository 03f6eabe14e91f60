"""Inverse temperatures of annealing runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from amc_pymc.arguments import positive_int

__all__ = ["Schedule", "make_schedule"]

Schedule = Literal["adaptive"] | tuple[Literal["power"], float] | Sequence[float] | np.ndarray


def make_schedule(
    schedule: Schedule, n_steps: int, *, barrier: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    r"""Make inverse temperatures from 0 to 1.

    With u = t / T for t = 0, ..., T:

    - ("power", c): :math:`u^c`; 1 is linear
    - "adaptive": equal steps of the barrier measured in a pilot run (Syed, Bouchard-Côté, Deligiannidis
      & Doucet 2022, doi:10.1111/rssb.12464)
    - an increasing sequence of T + 1 numbers from 0 to 1: used as given

    Parameters
    ----------
    schedule : "adaptive", ("power", float), or sequence of float
    n_steps : int
        Number of steps T. Ignored if the temperatures are given.
    barrier : (betas, heights), optional
        Inverse temperatures and the increasing barrier up to each; required for "adaptive".

    Returns
    -------
    array (T + 1,)

    Raises
    ------
    ValueError
        If the schedule is unknown, its power makes temperatures coincide, or given temperatures do not increase
        from 0 to 1.

    Examples
    --------
    >>> from amc_pymc.evidence.annealing import make_schedule
    >>> make_schedule(("power", 2), 4)
    array([0.    , 0.0625, 0.25  , 0.5625, 1.    ])
    """
    power = _power(schedule)
    if power is None and not isinstance(schedule, str):
        return _given(schedule)
    u = np.linspace(0.0, 1.0, positive_int("n_steps", n_steps) + 1)
    if power is not None:
        out = u**power
    elif barrier is None:
        raise ValueError("schedule 'adaptive' needs the barrier that a pilot run measures.")
    else:
        betas, heights = barrier
        out = np.interp(u * heights[-1], heights, betas)
    out[0], out[-1] = 0.0, 1.0
    if not _increasing(out):
        raise ValueError(
            f"schedule {schedule!r} has temperatures closer to each other than floating-point numbers are; "
            "use fewer steps or a smaller power."
        )
    return out


def _power(schedule: Any) -> float | None:
    """Return the power of a schedule, or None if it is adaptive or given as temperatures."""
    named = isinstance(schedule, tuple) and len(schedule) == 2 and isinstance(schedule[0], str)
    if not named and not isinstance(schedule, str):
        return None
    if schedule == "adaptive":
        return None
    power = schedule[1] if named and schedule[0] == "power" else None
    number = isinstance(power, int | float | np.number) and not isinstance(power, bool)
    if power is None or not number or not 0.0 < power < np.inf:
        raise ValueError(
            "schedule must be 'adaptive', ('power', c) with a positive number c, or increasing numbers from 0 to 1, "
            f"got {schedule!r}."
        )
    return float(power)


def _given(schedule: Any) -> np.ndarray:
    try:
        betas = np.array(schedule)
    except ValueError:
        betas = np.empty(0)
    numbers = betas.dtype.kind in "iuf" and betas.ndim == 1 and betas.size > 1
    if not numbers or not _increasing(betas) or betas[0] != 0.0 or betas[-1] != 1.0:
        raise ValueError(
            "schedule must be 'adaptive', a pair such as ('power', 4), or numbers that increase from 0 to "
            f"1, got {schedule!r}."
        )
    return betas.astype(float)


def _increasing(betas: np.ndarray) -> bool:
    return bool((np.diff(betas) > 0).all())
