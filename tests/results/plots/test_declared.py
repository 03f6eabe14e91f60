"""Plots read variables that results declare."""

import ast
import importlib

from pathlib import Path

import amc_pymc.results.plots

from amc_pymc.results.tables import RESULTS

DECLARED: dict[str, set[str]] = {}
for groups in RESULTS.values():
    for group, table in groups.items():
        DECLARED.setdefault(group, set()).update(table)


def names_in(node, module):
    """Return the names in a tuple of strings, or in the constant of a module."""
    if isinstance(node, ast.Name):
        return set(getattr(module, node.id))
    return {e.value for e in node.elts if isinstance(e, ast.Constant)}


def read_by_plots():
    """Yield module, group and variables of each call of ``result_group`` for a declared group."""
    for path in sorted(Path(amc_pymc.results.plots.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"amc_pymc.results.plots.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "result_group":
                group = getattr(node.args[1], "value", None)
                if group in DECLARED:
                    yield path.stem, group, names_in(node.args[2], module)


def test_plots_read_declared_variables():
    calls = list(read_by_plots())
    assert len({group for _, group, _ in calls}) >= 6
    for module, group, names in calls:
        assert names <= DECLARED[group], (module, group)
