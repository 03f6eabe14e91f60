"""The scripts of examples as modules."""

import importlib.util
import sys

from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(path: str) -> ModuleType:
    """Import a script, given by its path below `examples`, anew."""
    name = "example_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
