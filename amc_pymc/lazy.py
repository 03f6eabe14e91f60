"""Lazy imports of the public names of a package."""

from __future__ import annotations

import importlib

from collections.abc import Callable, Mapping
from typing import Any


def attach(
    package: str, namespace: dict[str, Any], places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the module functions ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Full name of the package.
    namespace : dict
        ``globals()`` of the package, where imported names are stored.
    places : mapping of str to str
        Full name of the module of each public name.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = getattr(importlib.import_module(places[name]), name)
        return namespace[name]

    def names() -> list[str]:
        return sorted({*namespace, *places})

    return get, names
