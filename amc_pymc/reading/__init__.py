"""Interface to PyMC: the only code that takes a ``pm.Model`` apart."""

from amc_pymc.reading.graphs import FlatLayout
from amc_pymc.reading.rows import NotRowFactorised, RowLogp, extract_rows

__all__ = ["FlatLayout", "NotRowFactorised", "RowLogp", "extract_rows"]
