"""Models of the zoo and their rows, extracted once for all tests in a process."""

from functools import cache

import pymc as pm

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from amc_pymc.reading.rows import RowLogp, extract_rows
from tests.model_zoo import ZOO, build

N_ROWS = 300


@cache
def zoo_model(name: str) -> pm.Model:
    return build(name, N_ROWS)


@cache
def zoo_rows(name: str) -> RowLogp:
    return extract_rows(zoo_model(name), ZOO[name].observed_arg)


class RowCounter(Op):
    """The identity, which notes the length of everything that passes through it."""

    __props__ = ()
    seen: list[int] = []

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        RowCounter.seen.append(inputs[0].shape[0])
        outputs[0][0] = inputs[0].copy()
