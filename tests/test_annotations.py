"""Public functions are annotated when they run: their arguments and what they return. mypy checks the source."""

import inspect

import pytest

import amc_pymc

from amc_pymc.results import plots

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


@pytest.mark.parametrize("name", PUBLIC)
def test_public_api_is_annotated(name):
    thing = public_object(name)
    functions = list(functions_of(thing))
    assert functions or not inspect.isfunction(thing)
    assert [m for f in functions for m in missing_at_run_time(*f)] == []
