"""Conversion of estimators to arms, and draws of arms with their costs and control variates."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from numpy.typing import ArrayLike

Cost = Literal["count", "cpu"]
Scale = Literal["natural", "log"]


class ArmError(RuntimeError):
    """An estimator raised an error or returned something that is not a number.

    Attributes
    ----------
    arm : str
        Name of the arm.
    draw : int
        Index of the draw in its request, from 0.
    """

    arm: str
    draw: int

    @classmethod
    def of(cls, arm: str, draw: int, what: str) -> ArmError:
        """Return the error of one draw of an arm."""
        error = cls(f"arm {arm!r} {what}")
        error.arm, error.draw = arm, draw
        return error


class Sample(NamedTuple):
    """Draws of one arm, in order.

    Attributes
    ----------
    values : array (n,)
        Estimates on the arm's scale.
    costs : array (n,)
    controls : array (n, q) or None
    """

    values: np.ndarray
    costs: np.ndarray
    controls: np.ndarray | None


@dataclass(frozen=True)
class Arm:
    """One unbiased estimator.

    Parameters
    ----------
    name : str
    function : callable
        ``rng -> value`` or, with ``batched``, ``(n, rng) -> values``; see :func:`as_arms`.
    batched : bool
        Whether `function` returns many draws at once.
    scale : {"natural", "log"}
        Whether values are estimates or their logarithms.
    cost : float or None
        Cost of one draw, if known in advance.
    control_means : array (q,) or None
        Known means of the control variates of every value.
    draws_per_job : int or None
        Least number of draws in a job of a worker process.
    """

    name: str
    function: Callable[..., Any]
    batched: bool = False
    scale: Scale = "natural"
    cost: float | None = None
    control_means: np.ndarray | None = None
    draws_per_job: int | None = None

    @property
    def known_means(self) -> np.ndarray:
        """Known means of the control variates, (q,); empty without any."""
        return np.empty(0) if self.control_means is None else self.control_means


def as_arms(arms: Mapping[str, Any] | Sequence[Any]) -> list[Arm]:
    """Convert estimators to arms.

    Parameters
    ----------
    arms : mapping of names to estimators, or sequence of estimators
        An estimator is a callable ``rng -> value``, or an object with ``sample(n, rng)`` that returns n
        values, or a tuple (values, costs), or (values, costs, controls); costs and controls may be
        None. Optional attributes of either: ``scale`` ("natural" or "log"), ``cost`` (of one draw, if
        known in advance), ``control_means`` (q,), ``draws_per_job`` (small if draws are expensive).

    Raises
    ------
    ValueError, TypeError
        If there are no arms, scales differ, or an estimator is invalid; the message names it.
    """
    if isinstance(arms, Mapping):
        if others := [k for k in arms if not isinstance(k, str)]:
            raise TypeError(f"names of arms must be strings, got {others[0]!r}.")
        named = list(arms.items())
    elif isinstance(arms, Sequence) and not isinstance(arms, str | bytes):
        named = [(_name_of(v, i), v) for i, v in enumerate(arms)]
    else:
        raise TypeError(f"arms must be a mapping or a sequence of estimators, got {arms!r}.")
    if not named:
        raise ValueError("arms is empty: there is nothing to combine.")
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        names = [f"{name}_{i}" for i, name in enumerate(names)]
    out = [_as_arm(name, v) for name, (_, v) in zip(names, named, strict=True)]
    if len({a.scale for a in out}) > 1:
        scales = ", ".join(f"{a.name!r}: {a.scale!r}" for a in out)
        raise ValueError(f"arms must all return values on one scale, got {scales}.")
    return out


def _name_of(estimator: Any, i: int) -> str:
    name = getattr(estimator, "name", None) or getattr(estimator, "__name__", None)
    return f"arm_{i}" if name is None or name == "<lambda>" else str(name)


def _as_arm(name: str, estimator: Any) -> Arm:
    if isinstance(estimator, Arm):
        return Arm(**{**estimator.__dict__, "name": name})
    sample: Any = getattr(estimator, "sample", None)
    batched = callable(sample)
    if not (batched or callable(estimator)):
        raise TypeError(
            f"arm {name!r} must be a callable rng -> value or have a method sample(n, rng), "
            f"got {estimator!r}."
        )
    scale: Any = getattr(estimator, "scale", "natural")
    if scale not in ("natural", "log"):
        raise ValueError(f"scale of arm {name!r} must be 'natural' or 'log', got {scale!r}.")
    cost = getattr(estimator, "cost", None)
    if cost is not None:
        number = isinstance(cost, int | float | np.number) and not isinstance(cost, bool)
        if not number or not 0.0 < cost < np.inf:
            raise ValueError(f"cost of arm {name!r} must be positive and finite, got {cost!r}.")
        cost = float(cost)
    means = getattr(estimator, "control_means", None)
    if means is not None:
        means = np.atleast_1d(np.asarray(means, float))
        if means.ndim != 1 or not np.isfinite(means).all():
            raise ValueError(f"control_means of arm {name!r} must be finite and (q,), got {means}.")
    per_job = getattr(estimator, "draws_per_job", None)
    return Arm(name, sample if batched else estimator, batched, scale, cost, means, per_job)


def draw(arm: Arm, n: int, rng: np.random.Generator, cost: Cost = "count") -> Sample:
    """Draw n values of an arm.

    Parameters
    ----------
    arm : Arm
    n : int
    rng : Generator
    cost : "count" or "cpu"
        Cost of a draw. "count" is the cost that the arm returns, else its known cost, else one. "cpu" is
        seconds of CPU time of this thread.

    Returns
    -------
    Sample

    Raises
    ------
    ArmError
        If the arm raises an error, or returns the wrong shape, nan or inf, or a cost that is not positive.
        The error names the arm and the draw.
    """
    found = (_draw_batch if arm.batched else _draw_singly)(arm, n, rng, cost)
    paid = (found.costs > 0.0) & np.isfinite(found.costs)
    if not paid.all():
        first = int(paid.argmin())
        what = f"has the cost {found.costs[first]}, which must be positive and finite"
        raise ArmError.of(arm.name, first, what)
    return found


def _draw_batch(arm: Arm, n: int, rng: np.random.Generator, cost: Cost) -> Sample:
    begin = time.thread_time()
    try:
        found = arm.function(n, rng)
    except Exception as error:
        raise ArmError.of(arm.name, 0, f"raised {type(error).__name__}: {error}") from error
    seconds = time.thread_time() - begin
    values, costs, controls = (
        (*found, None, None)[:3] if isinstance(found, tuple) else (found, None, None)
    )
    values = np.asarray(values, float)
    if values.shape != (n,):
        raise ArmError.of(
            arm.name, 0, f"returned values of shape {values.shape} where ({n},) was asked for"
        )
    _check_values(arm, values)
    if cost == "cpu" or costs is None:
        costs = np.full(n, _known_cost(arm, seconds / max(n, 1), cost))
    costs = np.asarray(costs, float)
    if costs.shape != (n,):
        raise ArmError.of(
            arm.name, 0, f"returned costs of shape {costs.shape} where ({n},) was asked for"
        )
    return Sample(values, costs, _checked_controls(arm, controls, n))


def _checked_controls(arm: Arm, controls: ArrayLike | None, n: int) -> np.ndarray | None:
    if controls is None:
        if arm.control_means is not None:
            raise ArmError.of(arm.name, 0, "has control_means and returned no controls")
        return None
    controls = np.asarray(controls, float).reshape(n, -1)
    q = controls.shape[1]
    if arm.control_means is None or arm.control_means.size != q:
        known = "none" if arm.control_means is None else str(arm.control_means.size)
        raise ArmError.of(arm.name, 0, f"returned {q} controls and has {known} in control_means")
    bad = ~np.isfinite(controls).all(axis=1)
    if bad.any():
        first = int(bad.argmax())
        raise ArmError.of(arm.name, first, f"returned the controls {controls[first]}")
    return controls


def _draw_singly(arm: Arm, n: int, rng: np.random.Generator, cost: Cost) -> Sample:
    values, costs = np.empty(n), np.empty(n)
    for i in range(n):
        begin = time.thread_time() if cost == "cpu" else 0.0
        try:
            values[i] = float(arm.function(rng))
        except Exception as error:
            raise ArmError.of(arm.name, i, f"raised {type(error).__name__}: {error}") from error
        seconds = time.thread_time() - begin if cost == "cpu" else 0.0
        _check_values(arm, values[i : i + 1], i)
        costs[i] = _known_cost(arm, seconds, cost)
    return Sample(values, costs, None)


def _known_cost(arm: Arm, seconds: float, cost: Cost) -> float:
    if cost == "cpu":
        return max(seconds, 1e-9)
    return 1.0 if arm.cost is None else arm.cost


def _check_values(arm: Arm, values: np.ndarray, first: int = 0) -> None:
    """Raise an error that names the first value that is nan or infinite; ``first`` is the number of values[0]."""
    usable = values < math.inf if arm.scale == "log" else np.isfinite(values)
    if not usable.all():
        wrong = int(usable.argmin())
        raise ArmError.of(arm.name, first + wrong, f"returned {values[wrong]}")


def join_samples(samples: Sequence[Sample]) -> Sample:
    """Concatenate samples; without any, the result has no draws."""
    controls = [s.controls for s in samples if s.controls is not None]
    return Sample(
        np.concatenate([[], *(s.values for s in samples)]),
        np.concatenate([[], *(s.costs for s in samples)]),
        np.concatenate(controls) if controls else None,
    )
