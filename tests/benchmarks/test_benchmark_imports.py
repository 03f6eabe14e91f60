"""Benchmarks stand on one harness and not on one another; imports do not run in a circle."""

import json
import subprocess
import sys

from pathlib import Path

import pytest

from test_imports import assert_no_cycle, import_graph, imported_names

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
# folder: what it may import from, beside itself; modules that lie in benchmarks itself are a folder, too.
LOWER = {
    "harness": set(),
    "tables": {"harness"},
    **{folder: {"harness"} for folder in ("tall", "evidence", "abc", "papers")},
}
#: What the process that hands out jobs has no need of.
HEAVY = {"pymc", "pytensor", "jax", "nutpie"}


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


def test_no_cycles():
    graph = import_graph(modules())
    assert len(graph) > 50
    assert_no_cycle(graph)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("benchmarks.harness.jobs", "from benchmarks.tall.problems import Job"),
        ("benchmarks.harness.intervals", "def f():\n    from amc_pymc.rng import as_generator"),
        ("benchmarks.abc.methods", "from benchmarks.evidence import suite"),
        ("benchmarks.papers.verma", "from benchmarks import abc"),
        ("benchmarks.tables", "from benchmarks.tall import bench"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(violations(module, False, source)) == 1


def test_a_cycle_is_found():
    found = {
        "benchmarks.tall": (True, ""),
        "benchmarks.tall.bench": (False, "def f():\n    from benchmarks.tall.samplers import run"),
        "benchmarks.tall.samplers": (False, "from benchmarks.tall.bench import Job"),
    }
    with pytest.raises(pytest.fail.Exception, match="in a circle"):
        assert_no_cycle(import_graph(found))


@pytest.mark.parametrize(
    "script", ["tall.logistic", "tall.scale", "tall.exact", "tall.first_draw", "evidence.suite"]
)
def test_handing_out_jobs_imports_nothing_heavy(script):
    code = f"import json, sys, benchmarks.{script}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert not HEAVY & set(json.loads(done.stdout))
