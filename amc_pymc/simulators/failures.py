"""Failed simulations as text and as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from amc_pymc.simulators.problem import Failure

__all__ = ["describe", "failure_arrays", "failures_from_arrays"]

_SAID = {"error": "raised", "nan": "returned nan", "timeout": "took too long"}
#: Maximum length of a message in characters.
_LONGEST = 200


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
    >>> from amc_pymc.simulators.failures import describe
    >>> from amc_pymc.simulators.problem import Failure
    >>> failed = [Failure(1, "error", "ValueError: no root"), Failure(2, "nan", "distance is nan")]
    >>> describe(failed, {"a": np.array([0.1, 1.2, 0.3])})
    "2 of 3 simulations failed: 1 raised ('ValueError: no root', first at a=1.2), 1 returned nan (first at a=0.3)"
    """
    n = len(next(iter(parameters.values()))) if parameters else 0
    text = f"{len(failures):,} of {n:,} simulations failed"
    parts = []
    for kind in sorted({f.kind for f in failures}, key=_order):
        some = [f for f in failures if f.kind == kind]
        first = min(some)
        where = ", ".join(f"{name}={_brief(v[first.index])}" for name, v in parameters.items())
        said = f"{_shortened(first.message)!r}, " if kind == "error" else ""
        parts.append(f"{len(some):,} {_SAID.get(kind, kind)} ({said}first at {where})")
    return f"{text}: {', '.join(parts)}" if parts else text


def _order(kind: str) -> tuple[int, str]:
    known = list(_SAID)
    return known.index(kind) if kind in known else len(known), kind


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
    >>> from amc_pymc.simulators.failures import failure_arrays, failures_from_arrays
    >>> from amc_pymc.simulators.problem import Failure
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
