"""Rows larger than memory: sources that users have, and a shuffled store on disk made of them."""

from amc_pymc.row_store.chunks import Placeholder
from amc_pymc.row_store.group_writer import GroupedPacking, stored_groups
from amc_pymc.row_store.settings import Rows, as_rows
from amc_pymc.row_store.shared import SharedArray, shared_array
from amc_pymc.row_store.sources import RowSource, open_source
from amc_pymc.row_store.store import AROUND, RowStore
from amc_pymc.row_store.writer import Packing, stored_rows

__all__ = [
    "AROUND",
    "GroupedPacking",
    "Packing",
    "Placeholder",
    "RowSource",
    "RowStore",
    "Rows",
    "SharedArray",
    "as_rows",
    "open_source",
    "shared_array",
    "stored_groups",
    "stored_rows",
]
