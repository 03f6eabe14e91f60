"""PyTensor functions that compiled loops call."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from numba import types

from amc_pymc.reading.native import compile_graph, native_function
from amc_pymc.tall.samplers.compiled import call_total

TABLE = np.arange(6.0).reshape(2, 3)
ORDERS = {
    "C": TABLE,
    "Fortran": np.asfortranarray(TABLE),
    "strided": np.repeat(TABLE, 2, axis=1)[:, ::2],
    "swapped": TABLE.astype(">f8"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_data_may_have_any_order(order):
    """Those that are passed, and values of shared variables."""
    x, data = pt.vector("x"), pt.matrix("data")
    shared = pytensor.shared(np.asarray(ORDERS[order], float), borrow=True)
    fn = compile_graph([x, data], pt.sum(x * (data[1] + 10.0 * shared[0])))
    native = native_function(fn, types.float64(types.float64[::1]), [ORDERS[order]])
    at = np.array([1.0, 2.0, 4.0])
    assert call_total(native, at) == at @ (TABLE[1] + 10.0 * TABLE[0])
