"""Memory that pages of files take in a process."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["release"]


def release(array: np.ndarray) -> None:
    """Let go of the pages of an array that is mapped into memory read-only.

    They are read again when they are needed. Other arrays are left as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.row_store.pages import release
    >>> release(np.ones(3))
    """
    mapped, advice = getattr(array, "_mmap", None), getattr(mmap, "MADV_DONTNEED", None)
    if mapped is not None and advice is not None and getattr(array, "mode", None) == "r":
        mapped.madvise(advice)
