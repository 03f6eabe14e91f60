"""Data larger than memory: sources of rows, and a shuffled store of rows on disk."""

from amc_pymc.row_store.chunks import Placeholder
from amc_pymc.row_store.group_writer import GroupedPacking, stored_groups
from amc_pymc.row_store.packing import Packing
from amc_pymc.row_store.partitions import Partitions, held_partitions
from amc_pymc.row_store.settings import Rows, as_rows
from amc_pymc.row_store.shared import SharedArray, shared_array
from amc_pymc.row_store.sources import RowSource, open_source
from amc_pymc.row_store.store import AROUND, RowStore, as_writable
from amc_pymc.row_store.writer import stored_rows

__all__ = [
    "AROUND",
    "GroupedPacking",
    "Packing",
    "Partitions",
    "Placeholder",
    "RowSource",
    "RowStore",
    "Rows",
    "SharedArray",
    "as_rows",
    "as_writable",
    "held_partitions",
    "open_source",
    "shared_array",
    "stored_groups",
    "stored_rows",
]
