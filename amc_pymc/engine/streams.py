"""Random generators as arguments of compiled loops.

Numba looks for the addresses of a generator's state and functions by calls in Python, which takes 6.5
microseconds for each generator and call. Here they are looked up once for each generator.
"""

from __future__ import annotations

import ctypes
import functools

from collections.abc import Callable
from typing import Any

import numpy as np

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["GENERATOR", "Stream", "generator_of", "stream_of"]

#: Numba's type of a random generator.
GENERATOR = types.NumPyRandomGeneratorType("NumPyRandomGeneratorType")
#: Addresses of the state, and of the functions for the next uint64, uint32 and double.
type Stream = tuple[int, int, int, int]


@functools.lru_cache(maxsize=256)
def stream_of(rng: np.random.Generator) -> Stream:
    """Return a generator's addresses, which are valid as long as the generator is alive.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit
    >>> from amc_pymc.engine.streams import generator_of, stream_of
    >>> @njit
    ... def draw(stream):
    ...     return generator_of(stream).random()
    >>> rng = np.random.default_rng(1)
    >>> draw(stream_of(rng)) == np.random.default_rng(1).random()
    True
    """
    bits = rng.bit_generator.ctypes
    functions = bits.next_uint64, bits.next_uint32, bits.next_double
    addresses: list[Any] = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    return bits.state_address, *addresses


def _generator_of(context: Any, stream: Any) -> tuple[Any, Callable[..., Any]]:
    """Build the generator at the addresses of a stream, as Numba does for an argument."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = cgutils.unpack_tuple(builder, arguments[0])
        bits_kind = types.NumPyRandomBitGeneratorType("bit_generator")
        bits = cgutils.create_struct_proxy(bits_kind)(context, builder)  # other members are zero
        bits.state_address = bits.state = words[0]
        bits.fnptr_next_uint64, bits.fnptr_next_uint32, bits.fnptr_next_double = words[1:]
        generator = cgutils.create_struct_proxy(GENERATOR)(context, builder)
        generator.bit_generator = bits._getvalue()
        return generator._getvalue()

    return GENERATOR(types.UniTuple(types.int64, 4)), codegen


#: In compiled code, ``generator_of(stream)`` is the generator.
generator_of: Any = intrinsic(_generator_of)
