"""Public functions are annotated: their arguments and what they return."""

import ast
import inspect
import tomllib

from pathlib import Path

import pytest

import amc_pymc

from amc_pymc.results import plots

PACKAGE = Path(amc_pymc.__file__).parent
#: Rooms that are not public. pyproject.toml lists the same for mypy.
NOT_YET = {"engine", "reading", "tall"}
#: Modules of other rooms that read models with PyTensor, listed there as well.
NOT_YET_FILES = {
    f"likelihood_free/{name}.py"
    for name in (
        "batched", "distances", "model_prior", "model_problem", "quantiles", "references"
    )
}  # fmt: skip
PUBLIC = sorted({*amc_pymc.__all__, *plots.__all__} - {"__version__"})


def public_object(name):
    return getattr(amc_pymc, name) if name in amc_pymc.__all__ else getattr(plots, name)


def functions_of(thing):
    """Yield (name, function) of a function, or of the methods of a class that the package defines."""
    if inspect.isfunction(thing):
        yield thing.__name__, thing
    elif inspect.isclass(thing):
        for name, found in inspect.getmembers_static(thing):
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if isinstance(found, property):
                found = found.fget
            found = inspect.unwrap(getattr(found, "__func__", found))
            if inspect.isfunction(found) and found.__module__.startswith("amc_pymc"):
                yield f"{thing.__name__}.{name}", found


def missing_at_run_time(name, function):
    """Return what a function leaves without an annotation."""
    signature = inspect.signature(function)
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    missing = [f"{name}: {p}" for p in bare if p not in ("self", "cls")]
    if signature.return_annotation is signature.empty and not name.endswith("__init__"):
        missing.append(f"{name}: return")
    return missing


def missing_in_source(source):
    """Return public functions and methods (line, name) that are not annotated throughout."""
    found = []
    waiting = [ast.parse(source)]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef) and not _is_private(node.name):
                args = node.args
                every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
                bare = [a for a in every if a is not None and a.annotation is None]
                complete = all(a.arg in ("self", "cls") for a in bare)
                if not complete or (node.returns is None and node.name != "__init__"):
                    found.append((node.lineno, node.name))
            elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
                waiting.append(node)
    return sorted(found)


def _is_private(name):
    return name.startswith("_") and not name.endswith("__")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_api_is_annotated(name):
    thing = public_object(name)
    functions = list(functions_of(thing))
    assert functions or not inspect.isfunction(thing)
    assert [m for f in functions for m in missing_at_run_time(*f)] == []


@pytest.mark.parametrize(
    "room", sorted({p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py")} - NOT_YET)
)
def test_room_is_annotated(room):
    path = PACKAGE / room
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert files
    problems = [
        f"{file.relative_to(PACKAGE)}:{line}: {name}"
        for file in files
        if file.relative_to(PACKAGE).as_posix() not in NOT_YET_FILES
        for line, name in missing_in_source(file.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n" + "\n".join(problems)


def test_mypy_is_strict_outside_the_same_rooms():
    file = PACKAGE.parent / "pyproject.toml"
    if not file.exists():
        pytest.skip("not a source tree")
    settings = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"] is True
    (loose,) = (o for o in settings["overrides"] if o.get("disallow_untyped_defs") is False)
    rooms = {m.split(".")[1] for m in loose["module"] if m.endswith(".*")}
    files = {"/".join(m.split(".")[1:]) + ".py" for m in loose["module"] if not m.endswith(".*")}
    assert rooms == NOT_YET and files == NOT_YET_FILES
