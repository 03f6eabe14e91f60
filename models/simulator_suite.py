"""Examples of inference without a likelihood that need no download, from two to ten parameters.

>>> from models.simulator_suite import suite
>>> [example.name for example in suite() if example.reference is None]
['lotka_volterra', 'heston', 'mg1_queue']
"""

from __future__ import annotations

from collections.abc import Callable

from models.g_and_k import g_and_k
from models.gaussian_known import gaussian_known
from models.heston import heston
from models.lotka_volterra import lotka_volterra
from models.ma2 import ma2
from models.mg1_queue import mg1_queue
from models.simulator_example import SimulatorExample
from models.two_moons import two_moons
from models.two_scale_mixture import two_scale_mixture

EXAMPLES: dict[str, Callable[[], SimulatorExample]] = {
    "two_moons": two_moons,
    "two_scale_mixture": two_scale_mixture,
    "gaussian_10": gaussian_known,
    "g_and_k": g_and_k,
    "ma2": ma2,
    "lotka_volterra": lotka_volterra,
    "heston": heston,
    "mg1_queue": mg1_queue,
}
"""Name, and the function that makes the example."""


def suite() -> list[SimulatorExample]:
    """All examples, made afresh: a second, and some more when Numba compiles for the first time."""
    return [make() for make in EXAMPLES.values()]
