"""Results: declared variables, tables of diagnostics, and plots."""

from amc_pymc.results.common import (
    LARGEST_K,
    CompactTable,
    normal_interval,
    pareto_k,
    result_group,
    with_error,
)
from amc_pymc.results.compare_evidence import compare_evidence
from amc_pymc.results.decision_error import clopper_pearson, decision_error
from amc_pymc.results.variables import Table, Variable, as_table, declared_dataset, described

__all__ = [
    "LARGEST_K",
    "CompactTable",
    "Table",
    "Variable",
    "as_table",
    "clopper_pearson",
    "compare_evidence",
    "decision_error",
    "declared_dataset",
    "described",
    "normal_interval",
    "pareto_k",
    "result_group",
    "with_error",
]
