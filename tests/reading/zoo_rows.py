"""Models of the zoo and their rows, extracted once for all tests in a process."""

from functools import cache

import pymc as pm

from amc_pymc.reading.rows import RowLogp, extract_rows
from tests.model_zoo import ZOO, build

N_ROWS = 300


@cache
def zoo_model(name: str) -> pm.Model:
    return build(name, N_ROWS)


@cache
def zoo_rows(name: str) -> RowLogp:
    return extract_rows(zoo_model(name), ZOO[name].observed_arg)
