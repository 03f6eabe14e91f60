"""Release of memory taken by mapped files."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["release"]


def release(array: np.ndarray) -> None:
    """Release the pages of an array that is memory-mapped read-only.

    They are read again when they are needed. Other arrays are not changed.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.row_store.pages import release
    >>> release(np.ones(3))
    """
    mapped, advice = getattr(array, "_mmap", None), getattr(mmap, "MADV_DONTNEED", None)
    if mapped is not None and advice is not None and getattr(array, "mode", None) == "r":
        mapped.madvise(advice)
