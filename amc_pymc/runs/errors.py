"""Exceptions of jobs, as they reach another process."""

import pickle
import traceback

__all__ = ["can_be_pickled", "portable"]


def portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with the traceback of the worker in a note.

    Parameters
    ----------
    error : Exception

    Returns
    -------
    Exception
        The same one, or a RuntimeError with the name and the message of one that cannot be pickled.

    Examples
    --------
    >>> from amc_pymc.runs.errors import portable
    >>> error = KeyError("a")
    >>> error.cause = lambda: None
    >>> portable(error)
    RuntimeError("KeyError: 'a'")
    """
    note = "In a worker process:\n" + "".join(traceback.format_tb(error.__traceback__))
    if not can_be_pickled(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def can_be_pickled(error: Exception) -> bool:
    """Whether an exception survives the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True
