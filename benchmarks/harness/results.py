"""Results on disk: rows as they come, what a run found, and the small files that are committed."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import os
import platform
import shlex
import sys

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.harness.jobs import ROOT, Result
from benchmarks.harness.tables import find_tables

#: Where runs write, unless told otherwise, and where committed tables are.
OUT = ROOT / "results"
RECORDED = ROOT / "benchmarks" / "results"
_LIBRARIES = (
    "amc-pymc", "pymc", "pytensor", "numba", "numpy", "scipy", "scikit-learn", "nutpie", "jax", "numpyro",
    "dynesty", "nautilus-sampler", "morphz", "pyabc",
)  # fmt: skip


def about() -> Result:
    """Date, command, machine and versions of a run."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": versions,
    }


def command() -> str:
    """The command that is running."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path = Path(getattr(main, "__file__", None) or "script.py").resolve()
    if spec is not None:
        name = spec.name
    else:
        name = (
            ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if ROOT in path.parents
            else path.stem
        )
    return shlex.join(["python", "-m", name, *sys.argv[1:]])


def save(
    options: Namespace, name: str, rows: Sequence[Result], text: str, meta: Mapping | None = None
) -> None:
    """Write rows as JSON and CSV and the printed text as Markdown into the folder ``--out``.

    With ``--record`` the tables of the text also go to ``benchmarks/results``, see :func:`record`.
    """
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    known = about() | {"options": vars(options)} | dict(meta or {})
    whole = {"meta": known, "rows": list(rows)}
    (out / f"{name}.json").write_text(json.dumps(whole, indent=1, default=str))
    (out / f"{name}.md").write_text(text + "\n")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with (out / f"{name}.csv").open("w", newline="") as sink:
        writer = csv.DictWriter(sink, keys)
        writer.writeheader()
        writer.writerows(rows)
    if getattr(options, "record", False):
        record(name, text)


def record(name: str, text: str, folder: Path | None = None) -> Path:
    """Write the tables of a report to a small file, with date, command, machine and versions."""
    path = (folder or RECORDED) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump({"benchmark": name, **about(), "tables": find_tables(text)}))
    return path


def dump(found: Result) -> str:
    """JSON with a line for every row of a table."""
    tables = found["tables"]
    head = json.dumps(
        {k: v for k, v in found.items() if k != "tables"}, indent=1, ensure_ascii=False
    )
    parts = []
    for key, table in tables.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in table["rows"]]
        rows = ",\n    ".join(lines)
        headers = json.dumps(table["headers"], ensure_ascii=False)
        parts.append(
            f'  {json.dumps(key)}: {{\n   "headers": {headers},\n   "rows": [\n    {rows}\n   ]\n  }}'
        )
    body = ",\n".join(parts)
    return f'{head[:-2]},\n "tables": {{\n{body}\n }}\n}}\n'


class Book:
    """Rows of a benchmark in a file of JSON lines, as they come.

    Parameters
    ----------
    path : Path
    key : callable
        What tells a row from others; of rows that are told apart by nothing, the last counts.
    """

    def __init__(self, path: Path, key: Callable[[Result], object]):
        self.path, self.key = path, key
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
            # The last line was cut off.
            path.write_bytes(text + b"\n")

    def rows(self) -> list[Result]:
        """All rows but those that were cut off."""
        found: dict[object, Result] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                found[self.key(row)] = row
        return list(found.values())

    def done(self) -> set[object]:
        """Keys of the rows that are finished."""
        return {self.key(row) for row in self.rows() if row["status"] == "finished"}

    def add(self, *rows: Result) -> None:
        """Append rows, each in one piece."""
        with self.path.open("a") as sink:
            for row in rows:
                sink.write(json.dumps(row) + "\n")
