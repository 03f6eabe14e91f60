"""Interface to PyMC: the only code that takes a ``pm.Model`` apart."""

from typing import TYPE_CHECKING

from amc_pymc.lazy import attach

if TYPE_CHECKING:
    from amc_pymc.extract.layout import FlatLayout
    from amc_pymc.extract.rows import NotRowFactorised, RowLogp, extract_rows
    from amc_pymc.extract.simulator import ModelProblem

__all__ = ["FlatLayout", "ModelProblem", "NotRowFactorised", "RowLogp", "extract_rows"]

_PLACES = {
    "FlatLayout": "amc_pymc.extract.layout",
    "ModelProblem": "amc_pymc.extract.simulator",
    "NotRowFactorised": "amc_pymc.extract.rows",
    "RowLogp": "amc_pymc.extract.rows",
    "extract_rows": "amc_pymc.extract.rows",
}
__getattr__, __dir__ = attach(__name__, globals(), _PLACES)
