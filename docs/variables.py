"""The tables of the page on variables of results, made from their declarations."""

from __future__ import annotations

from amc_pymc.results import Table
from amc_pymc.results.tables import RESULTS


def tables() -> str:
    """Return a section for each function, with a table for each group of its results."""
    parts = []
    for function, groups in RESULTS.items():
        parts.append(f"## {function}")
        parts += [f"Group `{group}`:\n\n{rows(table)}" for group, table in groups.items()]
    return "\n\n".join(parts) + "\n"


def rows(table: Table) -> str:
    """Return a table in Markdown."""
    lines = ["| name | dims | type | unit | meaning |", "|---|---|---|---|---|"]
    for v in table.values():
        unit = ", ".join(filter(None, (v.scale, v.unit)))
        meaning = v.meaning.replace("|", "\\|")
        lines.append(f"| `{v.name}` | {', '.join(v.dims)} | {v.dtype} | {unit} | {meaning} |")
    return "\n".join(lines)
