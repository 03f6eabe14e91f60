"""Imports in amc_pymc point one way, importing it has no side effects, no file names a machine."""

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys

from pathlib import Path

import pytest

import amc_pymc

PACKAGE = Path(amc_pymc.__file__).parent
REPOSITORY = PACKAGE.parent

# room: the rooms it may import from, beside itself. A room is a module or package directly in amc_pymc.
ROOT = {"arguments", "flags", "logweights", "progress", "rng", "signals"}
BASE = ROOT | {"engine"}
LOWER = {
    **dict.fromkeys(ROOT, ROOT), "engine": ROOT, "rows": ROOT, "tall": BASE, "mixtures": BASE,
    "runs": BASE,
}  # fmt: skip
CORE = set(LOWER)
LOWER |= {
    "results": ROOT,
    "bandits": ROOT | {"results", "runs"},
    "reading": BASE | {"tall", "rows"},
    "steps": CORE | {"reading", "results"},
    "evidence": BASE | {"bandits", "mixtures", "reading", "results", "runs", "steps"},
    "likelihood_free": BASE | {"bandits", "mixtures", "reading", "results", "runs", "steps"},
}
LOWER["compile"] = set(LOWER)
LOWER["__init__"] = set(LOWER)

# Heavy libraries, and the rooms outside the core that may import them; the core imports none.
HEAVY = {
    "pymc": {"reading", "steps", "evidence", "likelihood_free", "compile"},
    "pytensor": {"reading", "steps", "evidence", "likelihood_free", "compile"},
    "arviz": {"bandits", "results", "steps", "evidence", "likelihood_free"},
    "xarray": {"bandits", "results", "steps", "evidence", "likelihood_free"},
}
# What may change with any version of Numba; only the engine imports it.
INSIDES = ("numba.core", "numba.experimental", "numba.extending", "llvmlite")
# Parts of the repository that are not installed.
OUTSIDE = {"benchmarks", "examples", "models", "tests"}


def library(name):
    top = name.split(".")[0]
    return "arviz" if top.startswith("arviz_") else top


def room_of(module):
    return [*module.split("."), "__init__"][1]


def modules():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path.name == "__init__.py", path.read_text(encoding="utf-8"))
    return found


@functools.cache
def imported_names(module, is_package, source):
    """Return (line, dotted name) of all imports, those in functions and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) + is_package - node.level]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                found.append((node.lineno, f"{base}.{alias.name}"))
    return found


def violations(module, is_package, source):
    room = room_of(module)
    if room not in LOWER:
        return [f"{module}: room {room!r} is not declared in {Path(__file__).name}"]
    problems = []
    for line, name in imported_names(module, is_package, source):
        top = library(name)
        if top == PACKAGE.name:
            target = room_of(name)
            if target != room and target not in LOWER[room]:
                problems.append(f"{module}:{line}: {room} must not import {name}")
        elif room != "engine" and name.startswith(INSIDES):
            problems.append(f"{module}:{line}: {room} must not import the inside of Numba, {name}")
        elif top in OUTSIDE or (top in HEAVY and room not in HEAVY[top]):
            problems.append(f"{module}:{line}: {room} must not import {top}")
    return problems


def import_graph(found):
    """Map each module to the modules it imports; a package's re-exports count for the package."""
    graph = {}
    for module, (is_package, source) in found.items():
        graph[module] = set()
        for _, name in imported_names(module, is_package, source):
            while name and name not in found:
                name = name.rpartition(".")[0]
            if name:
                graph[module].add(name)
    return graph


def assert_no_cycle(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("imports in a circle: " + " <- ".join(error.args[1]))


def test_imports_point_one_way():
    problems = [p for name, module in modules().items() for p in violations(name, *module)]
    assert not problems, "\n" + "\n".join(problems)


def test_no_cycles():
    assert_no_cycle(LOWER | {room: LOWER[room] - ROOT for room in ROOT})
    assert_no_cycle(import_graph(modules()))


def test_contributing_shows_the_table():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = {}
    for rooms, lower in re.findall(r"^([\w ]+?) +<-  (.+)$", text, re.MULTILINE):
        named = {*lower.split(",")[0].split()}
        above = set(shown) if named == {"everything", "above"} else set()
        known = named - {"everything", "above", "root", "nothing"}
        may = above | known | (ROOT if "root" in named else set())
        assert may <= {*shown, *ROOT}, f"{rooms}: a line names what is above it"
        shown |= dict.fromkeys(rooms.split(), may)
    assert shown == {room: LOWER[room] for room in LOWER if room != "__init__"}


SOURCES = [
    ("amc_pymc.engine.graph", False, "from amc_pymc.tall.decisions import thin", 1),
    ("amc_pymc.engine", True, "from ..tall import thinning", 1),
    ("amc_pymc.engine.graph", False, "import amc_pymc", 1),
    ("amc_pymc.tall.racing", False, "def f():\n    import xarray as xr", 1),
    ("amc_pymc.mixtures", True, "from arviz_base import from_dict", 1),
    ("amc_pymc.evidence", True, "from models.hares import build", 1),
    ("amc_pymc.cellar", False, "import math", 1),
    ("amc_pymc.reading.rows", False, "def f():\n    import llvmlite.ir", 1),
    ("amc_pymc", True, "from amc_pymc.steps import RacingMetropolis", 0),
    ("amc_pymc.tall.racing", False, "from ..engine import jit", 0),
    ("amc_pymc.engine.jit", False, "from numba.core import types", 0),
    ("amc_pymc.steps.gibbs", False, "from amc_pymc import rng, reading, tall", 0),
]


@pytest.mark.parametrize(("module", "is_package", "source", "wrong"), SOURCES)
def test_wrong_imports_are_found(module, is_package, source, wrong):
    assert len(violations(module, is_package, source)) == wrong


def test_import_registers_nothing_in_pymc():
    script = """
import json
from pymc.step_methods import STEP_METHODS
before = [step.__name__ for step in STEP_METHODS]
import amc_pymc
print(json.dumps([before, [step.__name__ for step in STEP_METHODS]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert before
    assert after == before


def test_import_loads_nothing_heavy():
    script = """
import json, sys
import pymc
before = set(sys.modules)
import amc_pymc
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "amc_pymc" in loaded
    assert [name for name in loaded if not name.startswith("amc_pymc")] == []


def test_public_names_are_found_when_they_are_used():
    """The table of places says what type checkers read, and each place has its names."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE" in ast.dump(node))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    places = {n: f"amc_pymc.{m}" for m, names in amc_pymc._PLACES.items() for n in names}
    assert places == typed
    assert {*places, "__version__"} == set(amc_pymc.__all__)
    assert set(amc_pymc.__all__) <= set(dir(amc_pymc))
    for name in amc_pymc.__all__:
        assert getattr(amc_pymc, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'RacingNothing'"):
        amc_pymc.RacingNothing


MACHINE_PATH = re.compile(
    r"(?<![\w.~$}/-])(?:[A-Z]:)?[/\\](?:root|home|Users|tmp|work|workspace|scratch|opt)[/\\][\w.-]"
)


def test_no_tracked_file_names_a_machine():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    problems = []
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = REPOSITORY / name
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                problems.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not problems, "\n" + "\n".join(problems)
