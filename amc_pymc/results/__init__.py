"""Results: declared variables, from which trees and documentation are made, and what results have in common."""

from amc_pymc.results.common import LARGEST_K, listed, normal_interval, result_group
from amc_pymc.results.variable import Table, Variable, as_table, declared_dataset, described

__all__ = [
    "LARGEST_K",
    "Table",
    "Variable",
    "as_table",
    "declared_dataset",
    "described",
    "listed",
    "normal_interval",
    "result_group",
]
