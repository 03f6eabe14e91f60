"""Printed source as compiled modules that are kept on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from amc_pymc.expressions.graph import Graph

__all__ = [
    "HEADER",
    "dot_tables",
    "filled_template",
    "kernel_folder",
    "load_kernels",
    "places_of",
]

#: What printed functions need to find.
HEADER = """
import math

import numpy as np

from numba import njit

from amc_pymc.expressions.functions import (
    bessel_ie, digamma, erfcx, exp, log, log1mexp, select, sigmoid, sign, softplus, tetragamma,
    trigamma,
)

"""

_BEGIN, _END = "# --- printed functions begin", "# --- printed functions end"
_FUNCTIONS = Path(__file__).resolve().parent / "functions.py"

#: Threads would find a module that is not yet complete.
_one_at_a_time = threading.RLock()


def filled_template(path: Path, lines: Sequence[str]) -> str:
    """Source of a template with printed lines in the place of what is between its marks."""
    head, rest = path.read_text().split(_BEGIN, 1)
    tail = rest.split(_END, 1)[1].split("\n", 1)[1]
    return "\n".join([head, *lines, tail])


def places_of(graph: Graph, output: int) -> tuple[list[int], list[int]]:
    """Entries of eta that an expression reads, and its products with consecutive entries."""
    entries = [n for n in graph.leaves([output], "entry") if graph.nodes[n].value == "eta"]
    return entries, graph.leaves([output], "dot")


def dot_tables(graph: Graph, dots: Sequence[int]) -> list[str]:
    """Tables of products with consecutive entries: first entry, number, columns."""
    found = [graph.nodes[n].value for n in dots] or [("eta", 0, ())]
    widest = max(1, *(len(v[2]) for v in found)) if len(found) > 1 else max(1, len(found[0][2]))
    columns = np.zeros((len(found), widest), int)
    for k, (_, _, c) in enumerate(found):
        columns[k, : len(c)] = c
    return [
        f"DOT_FIRST = np.array({[v[1] for v in found]}, np.int64)",
        f"DOT_SIZE = np.array({[len(v[2]) for v in found]}, np.int64)",
        f"DOT_COLUMNS = np.array({columns.tolist()}, np.int64)",
    ]


def kernel_folder() -> Path:
    """Where compiled kernels are kept: ``AMC_PYMC_CACHE`` or the user's cache folder."""
    root = os.environ.get("AMC_PYMC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "amc_pymc"


def load_kernels(source: str, *files: Path) -> ModuleType:
    """The module of some source, from memory, from disk, or compiled anew.

    Its name has a hash of the source and of everything in the package that it calls, so a changed
    package never meets old machine code; ``files`` are those besides the functions of expressions.
    """
    digest = hashlib.blake2b(source.encode(), digest_size=12)
    for file in (_FUNCTIONS, *files):
        digest.update(file.read_bytes())
    name = f"amc_pymc_kernels_{digest.hexdigest()}"
    with _one_at_a_time:
        if name in sys.modules:
            return sys.modules[name]
        path = _written(kernel_folder(), name, source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def _written(folder: Path, name: str, source: str) -> Path:
    """The file of a module; in a folder for this process alone where the cache cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != source:
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".py")
            with os.fdopen(handle, "w") as file:
                file.write(source)
            Path(temporary).replace(path)  # whole or not at all, whoever else writes it
        return path
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="amc_pymc_")) / f"{name}.py"
        path.write_text(source)
        return path
