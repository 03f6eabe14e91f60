"""Rows larger than memory: sources that users have, and a shuffled store on disk made of them."""

from amc_pymc.row_store.chunks import Placeholder
from amc_pymc.row_store.packing import Packing
from amc_pymc.row_store.partitions import Partitions, held_partitions
from amc_pymc.row_store.settings import Rows, as_rows
from amc_pymc.row_store.sources import RowSource, open_source
from amc_pymc.row_store.store import RowStore, as_writable
from amc_pymc.row_store.writer import stored_rows

__all__ = [
    "Packing",
    "Partitions",
    "Placeholder",
    "RowSource",
    "RowStore",
    "Rows",
    "as_rows",
    "as_writable",
    "held_partitions",
    "open_source",
    "stored_rows",
]
