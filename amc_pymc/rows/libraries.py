"""Optional libraries, imported when a source needs them."""

from __future__ import annotations

import importlib

from types import ModuleType

__all__ = ["library"]


def library(name: str, what: str) -> ModuleType:
    """Import a module, or raise an error that says what to install.

    Examples
    --------
    >>> from amc_pymc.rows.libraries import library
    >>> library("json", "JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"rows: {what} needs {package}; install it by pip install {package}, or all that rows "
            'may need by pip install "amc-pymc[rows]"'
        ) from error
