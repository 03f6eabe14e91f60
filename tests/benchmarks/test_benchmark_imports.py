"""Benchmarks stand on one harness and not on one another; imports do not run in a circle."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from test_imports import assert_no_cycle, import_graph, imported_names

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
# folder: what it may import from, beside itself; modules that lie in benchmarks itself are a folder, too.
LOWER = {
    "harness": set(),
    "tables": {"harness"},
    **{folder: {"harness"} for folder in ("tall", "evidence", "abc", "papers")},
}


def modules():
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        found[name] = (package, path.read_text(encoding="utf-8"))
    return found


def violations(module, is_package, source):
    here = [*module.split("."), ""][1]
    out = []
    for line, name in imported_names(module, is_package, source):
        top, there, *_ = [*name.split("."), "", ""]
        if top == "tests" or (here == "harness" and top in ("models", "amc_pymc")):
            out.append(f"{module}:{line}: {here} must not import {top}")
        if top == "benchmarks" and there != here and there not in LOWER.get(here, set()):
            out.append(f"{module}:{line}: {here} must not import {name}")
    return out


def test_folders_import_the_harness_alone():
    problems = [p for name, module in modules().items() for p in violations(name, *module)]
    assert not problems, "\n" + "\n".join(problems)


def test_names_of_the_package_exist():
    missing = []
    for module, (is_package, source) in modules().items():
        for line, name in imported_names(module, is_package, source):
            parent, _, last = name.rpartition(".")
            if not name.startswith("amc_pymc.") or hasattr(import_module(parent), last):
                continue
            # A module that nothing has imported is no attribute of its package.
            if not hasattr(import_module(parent), "__path__") or find_spec(name) is None:
                missing.append(f"{module}:{line}: there is no {name}")
    assert not missing, "\n" + "\n".join(missing)


def test_no_cycles():
    graph = import_graph(modules())
    assert len(graph) > 50
    assert_no_cycle(graph)
