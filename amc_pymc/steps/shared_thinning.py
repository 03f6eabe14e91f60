"""A thinning whose tables all processes share."""

from __future__ import annotations

from typing import Any

import numpy as np

from amc_pymc.rows import shared_array
from amc_pymc.tall.thinning import Thinning

__all__ = ["SharedThinning"]

#: Fields of a thinning with numbers of four bytes for every row.
_TABLES = ("bounds", "numbers", "pairs", "chances", "aliases")


class SharedThinning:
    """A thinning whose tables, if they are large, are in shared memory and not in pickles."""

    def __init__(self, thinning: Thinning):
        tables = [getattr(thinning, name) for name in _TABLES]
        self.thinning = thinning
        self._layout = [(table.dtype, table.shape) for table in tables]
        self._shared = shared_array((1 + sum(table.nbytes for table in tables) // 8,))
        if self._shared is not None:
            for place, table in zip(self._places(self._shared.draft()), tables, strict=True):
                place[...] = table
            self._fill()

    def _places(self, memory: np.ndarray) -> list[np.ndarray]:
        """Return the tables as views of an array."""
        out, begin = [], 0
        for dtype, shape in self._layout:
            end = begin + int(np.prod(shape))
            out.append(memory.view(dtype)[begin:end].reshape(shape))
            begin = end
        return out

    def _fill(self) -> None:
        assert self._shared is not None
        tables: dict[str, Any] = dict(zip(_TABLES, self._places(self._shared.data), strict=True))
        self.thinning = self.thinning._replace(**tables)

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is None:
            return self.__dict__
        none: dict[str, Any] = dict.fromkeys(_TABLES)
        return self.__dict__ | {"thinning": self.thinning._replace(**none)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shared is not None:
            self._fill()
