"""Packings that copy, and stores made with them."""

from __future__ import annotations

import numpy as np

from amc_pymc.rows import Placeholder, Rows, open_source, stored_rows

#: Columns of tables by data.
COLUMNS = {"X": ["a", "b"], "y": "y"}


class Copies:
    """Columns x0, x1, y; y holds whole numbers."""

    placeholders = (
        Placeholder("X", (2,), np.dtype(float)),
        Placeholder("y", (), np.dtype(np.int64)),
    )
    n_columns = 3

    def __init__(self):
        self.sizes: list[int] = []

    def pack(self, chunk, first):
        self.sizes.append(len(chunk["y"]))
        return np.column_stack([chunk["X"], chunk["y"]])


def make_data(n=3_000):
    rng = np.random.default_rng(2)
    return {"X": rng.normal(size=(n, 2)), "y": rng.integers(0, 1000, n)}


def table_of(data):
    return np.column_stack([data["X"], data["y"]])


def frame(data):
    import pandas as pd

    table = pd.DataFrame({"a": data["X"][:, 0], "b": data["X"][:, 1], "y": data["y"], "s": "text"})
    return table


def make_store(source, packing=None, columns=None, **kwargs):
    packing = packing or Copies()
    rows = Rows(source, columns, **kwargs)
    source = open_source(rows, packing.placeholders)
    return stored_rows(rows, source, packing, progressbar=False)
