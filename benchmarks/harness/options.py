"""Command lines: options that all benchmarks have, and those of one script, declared by their defaults."""

from __future__ import annotations

import argparse
import sys

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.harness.results import OUT


class Option(NamedTuple):
    """An option of a command line.

    False makes it a flag, and a list an option that takes several values. Its values are read as the
    default's are, unless `read` is given; whole numbers may be written as 1e4.
    """

    default: Any
    help: str = ""
    choices: Iterable[Any] | None = None
    read: Callable[[str], Any] | None = None


_COMMON: dict[str, Any] = {
    "seed": Option(1, "of all runs"),
    "out": Option(OUT, "where results are written"),
    "record": Option(False, "also write tables to benchmarks/results, for benchmarks.tables"),
    "quick": Option(False, "a small run that shows that it works"),
}
#: Help of options that several scripts have.
_HELP = {
    "sizes": "N", "rows": "N", "methods": "see benchmarks/README.md", "draws": "of a chain",
    "cap": "seconds of warm-up and sampling", "resume": "keep finished rows and do the others",
    "runs": "repetitions",
}  # fmt: skip


def parse(
    doc: str | None, argv: Sequence[str] | None = None, quick: Mapping[str, Any] | None = None,
    **own: Any,
) -> argparse.Namespace:  # fmt: skip
    """Parse a command line.

    Parameters
    ----------
    doc : str
        Its first line describes the script.
    argv : sequence of str, optional
        Arguments, by default those of the process.
    quick : mapping, optional
        Defaults of ``--quick``, which other options override.
    **own
        Default values or `Option` of the script's options; None removes one that all scripts have.
    """
    p = argparse.ArgumentParser(
        description=(doc or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, given in (_COMMON | own).items():
        if given is not None:
            _add(p, name, given if isinstance(given, Option) else Option(given))
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--quick" in arguments:
        p.set_defaults(**(quick or {}))
    return p.parse_args(arguments)


def _add(p: argparse.ArgumentParser, name: str, option: Option) -> None:
    flag, told = f"--{name.replace('_', '-')}", option.help or _HELP.get(name, " ")
    if option.default is False:
        p.add_argument(flag, action="store_true", help=told)
        return
    several = isinstance(option.default, list)
    example = next(iter(option.default), None) if several else option.default
    read = option.read or {int: whole, type(None): str}.get(type(example), type(example))
    p.add_argument(
        flag, nargs="*" if several else None, type=read, default=option.default, help=told,
        choices=None if option.choices is None else list(option.choices),
    )  # fmt: skip


def whole(text: str) -> int:
    """A whole number that may be written as 1e4."""
    value = float(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(value)
