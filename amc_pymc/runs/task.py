"""A job of a pool, and what becomes of it if its worker is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amc_pymc.runs.worker import WorkerDied

__all__ = ["TRIES", "Task"]

#: Number of times that a job may lose its worker.
TRIES = 3


@dataclass(eq=False)
class Task:
    """A job whose result has one piece. Subclasses have more pieces, time limits, or other ways to go on.

    Attributes
    ----------
    message : object
        Argument of the function of the pool.
    index : int
        Place among the jobs.
    pieces : list
        Pieces of the result so far.
    deaths : int
        Number of worker processes that have died on it.
    """

    message: Any
    index: int = 0
    pieces: list[Any] = field(default_factory=list)
    deaths: int = 0

    def complete(self) -> bool:
        """Whether all pieces have arrived."""
        return bool(self.pieces)

    def seconds(self, warm: bool) -> float | None:
        """Return the time limit of the next piece; a worker is `warm` once it has sent a piece."""
        return None

    def died(self, cause: str, warn: Callable[..., None]) -> list[Task]:
        """Return the tasks to do after a worker process has died on this one.

        A task that does not return itself is finished with the pieces that it has.

        Parameters
        ----------
        cause : str
        warn : callable
            ``warn(text, kind="worker")`` logs a warning, if there have been few of its kind.

        Raises
        ------
        WorkerDied
            If this has happened too often.
        """
        if self.deaths >= TRIES:
            raise WorkerDied(
                f"{self.deaths} worker processes have died ({cause}) on the same job. Do they have memory enough? "
                "Run it with cores=1 to see what happens."
            )
        warn(f"A worker process died ({cause}); what it did is done again.")
        self.pieces = []
        return [self]

    def hung(self, warn: Callable[..., None]) -> list[Task]:
        """Return the tasks to do after a worker process was killed at the time limit; see :meth:`died`."""
        raise NotImplementedError("tasks with a time limit say how to go on")
