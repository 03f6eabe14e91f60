"""Data larger than memory: sources of rows, and stores of packed rows on disk."""

from amc_pymc.rows.files import SharedArray, as_writable, shared_array
from amc_pymc.rows.opening import open_source
from amc_pymc.rows.sources import Rows, Source, as_rows
from amc_pymc.rows.store import AROUND, GroupedPacking, Packing, Placeholder, RowStore
from amc_pymc.rows.writer import stored_groups, stored_rows

__all__ = [
    "AROUND",
    "GroupedPacking",
    "Packing",
    "Placeholder",
    "RowStore",
    "Rows",
    "SharedArray",
    "Source",
    "as_rows",
    "as_writable",
    "open_source",
    "shared_array",
    "stored_groups",
    "stored_rows",
]
