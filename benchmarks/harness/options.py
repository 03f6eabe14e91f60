"""Command lines: the options that all benchmarks have."""

from __future__ import annotations

import argparse
import sys

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.results import OUT

Arguments = Sequence[str] | None


def parser(
    doc: str | None, *, seed: str | None = "of all runs", out: Any = OUT
) -> argparse.ArgumentParser:
    """A parser whose description is the first line of a docstring; `seed` is a help text, or None."""
    p = argparse.ArgumentParser(
        description=(doc or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    if seed is not None:
        p.add_argument("--seed", type=int, default=1, help=seed)
    what = "file of the rows" if out is not OUT else "folder of the results"
    p.add_argument("--out", type=type(out), default=out, help=what)
    p.add_argument(
        "--record", action="store_true",
        help="also write the tables to benchmarks/results, for python -m benchmarks.tables",
    )  # fmt: skip
    p.add_argument("--quick", action="store_true", help="a small run that shows that it works")
    return p


def parse(
    p: argparse.ArgumentParser, argv: Arguments = None, quick: Mapping[str, Any] | None = None
) -> argparse.Namespace:
    """Parse a command line; `quick` holds the defaults of ``--quick``, which other options override."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--quick" in arguments:
        p.set_defaults(**(quick or {}))
    return p.parse_args(arguments)
