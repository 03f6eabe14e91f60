"""Packings that copy, and stores made with them."""

from __future__ import annotations

import numpy as np

from amc_pymc.rows import Placeholder, Rows, open_source, stored_groups, stored_rows

#: Columns of tables by data.
COLUMNS = {"X": ["a", "b"], "y": "y", "g": "shop"}
#: Groups, and copies of the last row.
GROUPS, BEYOND = 40, 5


class Copies:
    """Columns x0, x1, y; y holds whole numbers."""

    placeholders = (
        Placeholder("X", (2,), np.dtype(float)),
        Placeholder("y", (), np.dtype(np.int64)),
    )
    n_columns = 3
    digest = printed = "copies"

    def __init__(self):
        self.sizes: list[int] = []

    def pack(self, chunk, first):
        self.sizes.append(len(chunk["y"]))
        return np.column_stack([chunk["X"], chunk["y"]])


class InGroups(Copies):
    """The same, in groups of g."""

    placeholders = (*Copies.placeholders, Placeholder("g", (), np.dtype(np.int64)))
    level_names, n_levels, beyond = ("g",), GROUPS, BEYOND

    def levels(self, chunk):
        assert list(chunk) == ["g"]  # nothing else is read to count rows
        return chunk["g"]


def make_data(n=3_000, groups=None):
    """With groups, group 3 is empty, and so is the last one; group 5 has one row."""
    rng = np.random.default_rng(2)
    data = {"X": rng.normal(size=(n, 2)), "y": rng.integers(0, 1000, n)}
    if groups:
        g = rng.integers(0, groups - 1, n)
        g[np.isin(g, (3, 5))] = 0
        g[n // 2] = 5
        data["g"] = g
    return data


def table_of(data):
    return np.column_stack([data["X"], data["y"]])


def frame(data):
    import pandas as pd

    table = pd.DataFrame({"a": data["X"][:, 0], "b": data["X"][:, 1], "y": data["y"], "s": "text"})
    return table.assign(shop=data["g"]) if "g" in data else table


def make_store(source, packing=None, columns=None, **kwargs):
    packing = packing or Copies()
    rows = Rows(source, columns, **kwargs)
    make = stored_groups if isinstance(packing, InGroups) else stored_rows
    return make(rows, open_source(rows, packing.placeholders), packing, progressbar=False)


def assert_in_groups(store, data, groups=GROUPS):
    """Rows are sorted by group, then in the order of the source; copies of the last one follow."""
    order = np.argsort(data["g"], kind="stable")
    sizes = np.bincount(data["g"], minlength=groups)
    np.testing.assert_array_equal(store.first, np.append(0, np.cumsum(sizes)))
    rows = table_of(data)[order]
    rows = np.concatenate([rows, np.tile(rows[-1], (BEYOND, 1))])
    np.testing.assert_array_equal(store.data, rows)
