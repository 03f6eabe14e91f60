"""Interface to PyMC: the only code that takes a ``pm.Model`` apart."""

from typing import TYPE_CHECKING

from amc_pymc.lazy import attach

if TYPE_CHECKING:
    from amc_pymc.reading.layout import FlatLayout
    from amc_pymc.reading.rows import NotRowFactorised, RowLogp, extract_rows

__all__ = ["FlatLayout", "NotRowFactorised", "RowLogp", "extract_rows"]

_PLACES = {
    "FlatLayout": "amc_pymc.reading.layout",
    "NotRowFactorised": "amc_pymc.reading.rows",
    "RowLogp": "amc_pymc.reading.rows",
    "extract_rows": "amc_pymc.reading.rows",
}
__getattr__, __dir__ = attach(__name__, globals(), _PLACES)
