"""The border with PyMC: the only code that takes a ``pm.Model`` apart."""

from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.rows import NotRowFactorised, RowLogp, extract_rows
from amc_pymc.extract.simulator import ModelProblem

__all__ = ["FlatLayout", "ModelProblem", "NotRowFactorised", "RowLogp", "extract_rows"]
