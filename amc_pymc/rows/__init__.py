"""Data larger than memory: sources of rows, and stores of packed rows on disk."""

from amc_pymc.rows.files import InMemory, RowStore
from amc_pymc.rows.sources import Placeholder, Rows, Source, open_source
from amc_pymc.rows.store import Packing, stored_rows

__all__ = [
    "InMemory",
    "Packing",
    "Placeholder",
    "RowStore",
    "Rows",
    "Source",
    "open_source",
    "stored_rows",
]
