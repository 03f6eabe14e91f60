"""Interface between models and likelihood-free samplers."""

from __future__ import annotations

import math

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

#: Scale of the Student kernel in units of the tolerance, and its degrees of freedom.
_SCALE, _TAILS = 0.7, 4.0
#: Maximum length of a message in characters.
_LONGEST = 200


def labels(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return names of the elements of an array, in C order.

    Examples
    --------
    >>> from amc_pymc.likelihood_free.problem import labels
    >>> labels("mu", (2, 1)), labels("sigma", ())
    (['mu[0,0]', 'mu[1,0]'], ['sigma'])
    """
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, at))}]" for at in np.ndindex(*shape)]


class Failure(NamedTuple):
    """A simulation that gave no distance.

    Attributes
    ----------
    index : int
        Row of the parameters.
    kind : {"error", "nan"}
    message : str
        Type and text of the error, or another reason for the failure.
    """

    index: int  # type: ignore[assignment]
    kind: str
    message: str


class Simulated(NamedTuple):
    """Distances of some simulations.

    Attributes
    ----------
    distance : array (n,)
        Nonnegative distances; inf where a simulation failed.
    failures : list of Failure
    summaries : array (n, S) or None
        Summary statistics, if requested; nan where a simulation failed.
    raised : str
        Error of a call whose rows were simulated again one by one; "" if there was none.
    """

    distance: np.ndarray
    failures: list[Failure]
    summaries: np.ndarray | None = None
    raised: str = ""


class Problem(Protocol):
    """A prior on the unit cube, a simulator and a distance to the data.

    Attributes
    ----------
    shapes : mapping of str to tuple of int
        Shapes of the parameters by name, in order.
    n_dim : int
        Number of coordinates of the unit cube, D.
    coordinates : list of str
        Parameter elements that the coordinates belong to.
    tolerance : float or None
        Smallest tolerance of interest, in units of the distance.
    observed_summaries : array (S,)
        Summary statistics of the data.
    """

    shapes: dict[str, tuple[int, ...]]
    n_dim: int
    coordinates: list[str]
    tolerance: float | None
    observed_summaries: np.ndarray

    def parameters(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return parameters (n, *shape) on their own scale, at points (n, D) of the unit cube."""

    def log_density(self, u: np.ndarray) -> np.ndarray | None:
        """Return the natural log prior density (n,) in the cube; None if it is uniform."""

    def log_prior(self, u: np.ndarray) -> np.ndarray:
        """Return the natural log prior density or mass (n,) on the scale of the parameters."""

    def simulate(
        self,
        u: np.ndarray,
        rng: np.random.Generator,
        *,
        batched: bool = False,
        summaries: bool = False,
    ) -> Simulated:
        """Simulate at points (n, D), one by one, or all in one call."""


def values_at(problem: Problem, u: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters and deterministics (n, *shape) at points (n, D) of the cube."""
    values = problem.parameters(u)
    if hasattr(problem, "deterministics"):
        values = {**values, **problem.deterministics(values)}
    return values


def shaped(columns: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return columns (n, P) as arrays (n, *shape) by name."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
    each = zip(shapes.items(), np.split(columns, ends, axis=1), strict=True)
    return {name: part.reshape(len(columns), *shape) for (name, shape), part in each}


def flat(values: Iterable[np.ndarray]) -> np.ndarray:
    """Return arrays (n, *shape) as columns (n, P); the inverse of :func:`shaped`."""
    each = [np.asarray(v, float) for v in values]
    return np.concatenate([v.reshape(len(v), math.prod(v.shape[1:])) for v in each], axis=1)


def lengths(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean lengths (n,) of rows (n, K)."""
    found: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return found


def are_whole(problem: Problem) -> np.ndarray:
    """Return which coordinates (D,) belong to whole numbers."""
    values = problem.parameters(np.full((1, problem.n_dim), 0.5))
    whole = {
        label: value.dtype.kind in "biu"
        for name, value in values.items()
        for label in labels(name, value.shape[1:])
    }
    return np.array([whole[c] for c in problem.coordinates])


# --- kernels --------------------------------------------------------------------------------------


def accepted(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Return whether distances (n,) are at most the tolerance (uniform kernel); inf accepts all finite ones.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.problem import accepted
    >>> accepted(np.array([0.1, 0.2, np.inf]), 0.1)
    array([ True, False, False])
    """
    if tolerance == math.inf:
        return np.isfinite(distance)
    return distance <= tolerance


def gaussian_kernel(distance: np.ndarray, tolerance: float) -> np.ndarray:
    r"""Return the kernel of ``pm.Simulator``, :math:`\exp(-d^2 / 2 \epsilon^2)`, of distances (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.problem import gaussian_kernel
    >>> gaussian_kernel(np.array([0.0, 1.0, np.inf]), 1.0).round(3)
    array([1.   , 0.607, 0.   ])
    """
    if tolerance in (0.0, math.inf):
        return accepted(distance, tolerance).astype(float)
    z = np.minimum(distance, 1e100 * float(tolerance)) / tolerance
    weight: np.ndarray = np.exp(-0.5 * z**2)
    return weight


def student_kernel(distance: np.ndarray, tolerance: float) -> np.ndarray:
    r"""Return weights (n,) between 0 and 1 for learning trees.

    .. math:: \left(1 + \frac{z^2}{\nu}\right)^{-\nu / 2 - 1}, \qquad z = \frac{d}{h \epsilon}

    with :math:`\nu = 4` and h = 0.7. A simulation that was just rejected is nearly as informative about where
    to simulate as one that was just accepted.

    Parameters
    ----------
    distance : array (n,)
        Distances; inf for failed simulations.
    tolerance : float
        Tolerance; inf accepts all finite distances.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.problem import student_kernel
    >>> student_kernel(np.array([0.0, 0.99, 1.01, np.inf]), 1.0).round(2)
    array([1.  , 0.3 , 0.28, 0.  ])
    """
    if tolerance in (0.0, math.inf):
        return accepted(distance, tolerance).astype(float)
    z = np.minimum(distance / (_SCALE * tolerance), 1e100)
    return np.where(np.isfinite(distance), (1.0 + z**2 / _TAILS) ** (-0.5 * _TAILS - 1.0), 0.0)


# --- failures -------------------------------------------------------------------------------------


def describe(failures: Sequence[Failure], parameters: Mapping[str, np.ndarray]) -> str:
    """Describe how many simulations failed, in which ways, and where each kind of failure first occurred.

    Parameters
    ----------
    failures : sequence of Failure
    parameters : mapping of str to array (n, *shape)
        Parameters of all n simulations, including those that did not fail.

    Returns
    -------
    str

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.problem import describe
    >>> from amc_pymc.likelihood_free.problem import Failure
    >>> failed = [Failure(1, "error", "ValueError: no root"), Failure(2, "nan", "distance is nan")]
    >>> describe(failed, {"a": np.array([0.1, 1.2, 0.3])})
    "2 of 3 simulations failed: 1 raised ('ValueError: no root', first at a=1.2), 1 returned nan (first at a=0.3)"
    """
    n = len(next(iter(parameters.values()))) if parameters else 0
    text = f"{len(failures):,} of {n:,} simulations failed"
    parts = []
    for kind, said in (("error", "raised"), ("nan", "returned nan")):
        some = [f for f in failures if f.kind == kind]
        if not some:
            continue
        first = min(some)
        where = ", ".join(f"{name}={_brief(v[first.index])}" for name, v in parameters.items())
        why = f"{_shortened(first.message)!r}, " if kind == "error" else ""
        parts.append(f"{len(some):,} {said} ({why}first at {where})")
    return f"{text}: {', '.join(parts)}" if parts else text


def _shortened(message: str) -> str:
    """Return a message in one line of limited length."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _brief(value: np.ndarray) -> str:
    with np.printoptions(precision=4, threshold=6, edgeitems=2):
        text = f"{value:.4g}" if np.ndim(value) == 0 else np.array2string(value, separator=", ")
    return " ".join(text.split())


def failure_arrays(failures: Sequence[Failure]) -> dict[str, np.ndarray]:
    """Return failures as arrays that need no pickle; messages are shortened, and repeated ones are kept once.

    Returns
    -------
    dict
        ``failed`` (F,), indices of simulations; ``failed_how`` (F,), indices into ``failure_kinds`` and
        ``failure_messages`` (M,).

    Examples
    --------
    >>> from amc_pymc.likelihood_free.problem import failure_arrays, failures_from_arrays
    >>> from amc_pymc.likelihood_free.problem import Failure
    >>> failures_from_arrays(failure_arrays([Failure(3, "nan", "distance is nan")]))
    [Failure(index=3, kind='nan', message='distance is nan')]
    """
    rows: dict[tuple[str, str], int] = {}
    how = [rows.setdefault((f.kind, _shortened(f.message)), len(rows)) for f in failures]
    return {
        "failed": np.array([f.index for f in failures], dtype=np.int64),
        "failed_how": np.array(how, dtype=np.int64),
        "failure_kinds": np.array([kind for kind, _ in rows], dtype=np.str_),
        "failure_messages": np.array([message for _, message in rows], dtype=np.str_),
    }


def failures_from_arrays(arrays: Mapping[str, np.ndarray]) -> list[Failure]:
    """Restore the failures given to :func:`failure_arrays`, with shortened messages."""
    kinds, messages = arrays["failure_kinds"], arrays["failure_messages"]
    return [
        Failure(int(index), str(kinds[row]), str(messages[row]))
        for index, row in zip(arrays["failed"], arrays["failed_how"], strict=True)
    ]
