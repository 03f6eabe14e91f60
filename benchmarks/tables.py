"""Write the tables of README.md and the documentation anew from the committed results.

    python -m benchmarks.tables            # rewrite what has changed
    python -m benchmarks.tables --check    # only say what has

A table stands between two marks, ``<!-- table: NAME -->`` and ``<!-- end -->``. NAME is a file of
``benchmarks/results``, without ``.json``, and if it holds several tables, a slash and the name of one.
Benchmarks write such files with ``--record``; files with an entry "transcribed" hold tables that were
measured before there were any.
"""

from __future__ import annotations

import argparse
import json
import re

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.jobs import ROOT, say
from benchmarks.harness.results import RECORDED
from benchmarks.harness.tables import markdown

_MARKED = re.compile(r"(<!-- table: ([\w/]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents(root: Path = ROOT) -> list[Path]:
    """Texts that may hold tables."""
    found = [root / "README.md", root / "benchmarks" / "README.md", *(root / "docs").glob("*.md")]
    return sorted(path for path in found if path.exists())


def table(name: str, folder: Path = RECORDED) -> str:
    """A committed table in Markdown."""
    file, _, wanted = name.partition("/")
    path = folder / f"{file}.json"
    if not path.exists():
        raise FileNotFoundError(f"table {name}: there is no {path.name} in benchmarks/results")
    tables = json.loads(path.read_text())["tables"]
    if not wanted and len(tables) == 1:
        (wanted,) = tables
    if wanted not in tables:
        raise KeyError(f"table {name}: {path.name} has {', '.join(tables)}")
    return markdown(tables[wanted]["headers"], tables[wanted]["rows"])


def rewritten(text: str, folder: Path = RECORDED) -> str:
    """A text with all marked tables as committed."""
    return _MARKED.sub(lambda m: f"{m[1]}{table(m[2], folder)}\n{m[3]}", text)


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite all documents."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--check", action="store_true", help="fail if anything would change")
    options = p.parse_args(argv)
    changed = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        new = rewritten(text)
        if new != text:
            changed.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(new, encoding="utf-8")
    say("\n".join(changed) or "nothing has changed")
    if changed and options.check:
        raise SystemExit("run python -m benchmarks.tables")


if __name__ == "__main__":
    main()
