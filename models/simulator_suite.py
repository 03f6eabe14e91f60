"""Examples of likelihood-free inference that need no download, with two to twelve parameters.

>>> from models.simulator_suite import suite
>>> [example.name for example in suite() if example.reference is None]
['lotka_volterra', 'heston']
"""

from __future__ import annotations

from collections.abc import Callable

from models.g_and_k import g_and_k
from models.point_simulators import (
    gaussian_known,
    gaussian_uniform,
    group_means,
    slcp,
    slcp_sufficient,
    two_moons,
    two_scale_mixture,
)
from models.process_simulators import ar_series, heston, lotka_volterra, ma2
from models.simulator_example import SimulatorExample

EXAMPLES: dict[str, Callable[[], SimulatorExample]] = {
    "two_moons": two_moons, "two_scale_mixture": two_scale_mixture, "gaussian_10": gaussian_known,
    "g_and_k": g_and_k, "ma2": ma2, "lotka_volterra": lotka_volterra, "heston": heston,
    "slcp": slcp, "slcp_sufficient": slcp_sufficient,
    "gaussian_uniform_10": gaussian_uniform, "ar_series": ar_series, "group_means_9": group_means,
}  # fmt: skip
"""Name, and the function that makes the example."""


def suite() -> list[SimulatorExample]:
    """Return all examples, created in a second, or longer when Numba compiles for the first time."""
    return [make() for make in EXAMPLES.values()]
