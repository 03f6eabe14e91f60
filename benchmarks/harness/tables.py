"""Tables in Markdown and what stands in their cells."""

from __future__ import annotations

import math
import re

from collections.abc import Iterable, Sequence

from benchmarks.harness.jobs import Result


def markdown(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table for people."""
    out = [_line(headers), "|" + "---|" * len(headers), *map(_line, lines)]
    return "\n".join(out)


def _line(entries: Sequence[str]) -> str:
    entries = [entry.replace("|", "\\|") for entry in entries]
    return "|" + "|".join(f" {entry} " if entry else " " for entry in entries) + "|"


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def find_tables(text: str) -> dict[str, Result]:
    """Headers and rows of the tables in a text, by the headings that they stand below.

    A table without a heading is called "table"; of several below one heading, later ones are numbered.

    >>> from benchmarks.harness.tables import find_tables, markdown
    >>> find_tables("## Costs, all" + chr(10) + markdown(["a", "b"], [["1", "2"]]))
    {'costs': {'headers': ['a', 'b'], 'rows': [['1', '2']]}}
    """
    out: dict[str, Result] = {}
    heading, table = "table", None
    for line in text.splitlines():
        if line.startswith("#"):
            title = re.split(r"[,:]", line.strip("# "))[0]
            heading = re.sub(r"\W+", "_", title.lower()).strip("_")
        if not line.startswith("|"):
            table = None
        elif table is None:
            names = (heading if k == 1 else f"{heading}_{k}" for k in range(1, 1000))
            table = {"headers": cells(line), "rows": []}
            out[next(name for name in names if name not in out)] = table
        elif not set(line) <= set("|-: "):
            table["rows"].append(cells(line))
    return out


def number(value: float | None, digits: int = 3) -> str:
    """Digits that matter, "-" for what is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0.0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """A share of one as a percentage."""
    return "-" if share is None or not math.isfinite(share) else f"{number(100.0 * share)} %"


def with_error(value: float | None, error: float | None, label: str = "") -> str:
    """A signed value with its standard error."""
    if value is None or not math.isfinite(value):
        return "-"
    of = f" ({label})" if label else ""
    return f"{value:+.3f} ± {number(error, 2)}{of}"


def times_faster(value: float) -> str:
    """How many times faster, or slower, in the same words for everybody."""
    if not (math.isfinite(value) and value > 0.0):
        return "-"
    return f"{number(value)}x faster" if value >= 1.0 else f"{number(1.0 / value)}x slower"


def share_of(k: int, n: int, low: float, high: float) -> str:
    """A share with its interval, "-" of nothing."""
    return f"{percent(k / n)} [{percent(low)}, {percent(high)}] of {n}" if n else "-"


def decision_error_cell(row: Result) -> str:
    """Measured decision error with its Clopper-Pearson interval, beside the promised one."""
    if not row.get("audited"):
        return "-"
    return (
        f"{percent(row['error'])} [{percent(row['error_low'])}, {percent(row['error_high'])}] "
        f"of {row['audited']}; promised {percent(row['delta'])}"
    )


def grouped(rows: Iterable[Result], *keys: str) -> dict[tuple, list[Result]]:
    """Rows by some of their entries, in order of appearance."""
    out: dict[tuple, list[Result]] = {}
    for row in rows:
        out.setdefault(tuple(row[k] for k in keys), []).append(row)
    return out
