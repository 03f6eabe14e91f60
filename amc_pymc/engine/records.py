"""Named tuples that compiled code takes by address.

Numba passes a named tuple of arrays as hundreds of numbers, in each call of each function. The fields of a record are
also written into memory, one after another, and compiled code takes their address.
"""

from __future__ import annotations

import functools
import struct

from collections.abc import Sequence
from typing import Any

import numpy as np

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    register_model,
    typeof_impl,
    unbox,
)

_WORD = ir.IntType(64)
#: Words of an array before its shape: number of elements, size of one, address.
_HEAD = 3


def record[T: tuple[Any, ...]](kind: type[T]) -> type[T]:
    """Make a record of a named tuple of arrays, numbers, functions and other records; class decorator.

    Compiled code reads fields, but makes no records. Arrays must be contiguous, in C order.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import numpy as np
    >>> from numba import njit
    >>> from amc_pymc.engine.records import record
    >>> @record
    ... class Line(NamedTuple):
    ...     slopes: np.ndarray
    ...     intercept: float
    >>> @njit
    ... def value(line, x):
    ...     return line.intercept + line.slopes[0] * x
    >>> value(Line(np.array([2.0]), 1.0), 3.0)
    7.0
    """
    fields: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__getstate__": lambda self: None,  # addresses mean nothing in another process
        "words": functools.cached_property(
            lambda self: np.array([w for value in self for w in words_of(value)], np.uint64)
        ),
        "address": functools.cached_property(lambda self: self.words.ctypes.data),
    }
    made: Any = type(kind.__name__, (kind,), fields)
    typeof_impl.register(made)(_typeof)
    return made


def words_of(value: Any) -> Sequence[int]:
    """Return the words of a field."""
    if isinstance(value, np.ndarray):
        return value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides
    if hasattr(value, "address"):
        return (value.address,)
    if isinstance(value, float):
        return struct.unpack("Q", struct.pack("d", value))
    return (int(value) % 2**64,)


class RecordType(types.Type):
    """Numba's type of a record."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]):
        self.fields, self.places, place = dict(fields), dict[str, int](), 0
        for field, kind in fields:
            self.places[field] = place
            place += width_of(kind)
        super().__init__(f"{name}({', '.join(f'{k}: {t}' for k, t in fields)})")


def width_of(kind: Any) -> int:
    """Return the number of words of a field."""
    return _HEAD + 2 * kind.ndim if isinstance(kind, types.Array) else 1


def _typeof(value: Any, context: Any) -> RecordType:
    fields = tuple((name, _kind(v, context)) for name, v in zip(value._fields, value))
    return RecordType(f"{type(value).__module__}.{type(value).__qualname__}", fields)


def _kind(value: Any, context: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return typeof_impl(value, context)
    if not value.flags.c_contiguous:
        raise ValueError(f"an array of shape {value.shape} in a record is not contiguous")
    return types.Array(typeof_impl(value, context).dtype, value.ndim, "C")


class AddressModel(PrimitiveModel):
    """Representation of a Python object by the address of its words."""

    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, _WORD.as_pointer())


def unbox_address(kind: Any, value: Any, c: Any) -> NativeValue:
    """Read the attribute ``address`` of a Python object, which may raise an error."""
    number = c.pyapi.object_getattr_string(value, "address")
    found = cgutils.is_not_null(c.builder, number)
    slot = cgutils.alloca_once_value(c.builder, cgutils.get_null_value(_WORD.as_pointer()))
    with c.builder.if_then(found):
        address = c.pyapi.long_as_voidptr(number)
        c.builder.store(c.builder.bitcast(address, _WORD.as_pointer()), slot)
        c.pyapi.decref(number)
    return NativeValue(c.builder.load(slot), is_error=c.builder.not_(found))


register_model(RecordType)(AddressModel)
unbox(RecordType)(unbox_address)


@infer_getattr
class _Fields(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, kind: RecordType, name: str) -> Any:  # type: ignore[override]
        return kind.fields.get(name)


@lower_getattr_generic(RecordType)
def _field(context: Any, builder: Any, kind: RecordType, words: Any, name: str) -> Any:
    place, field = kind.places[name], kind.fields[name]
    if isinstance(field, types.Array):
        return array_at(context, builder, field, words, place)
    word, value = word_at(builder, words, place), context.get_value_type(field)
    if isinstance(value, ir.PointerType):
        return builder.inttoptr(word, value)
    if field == types.boolean:
        return builder.trunc(word, value)
    return builder.bitcast(word, value)


def word_at(builder: Any, words: Any, place: int) -> Any:
    """Read a word. It never changes, so that loops read it once."""
    word = builder.load(builder.gep(words, [ir.Constant(_WORD, place)]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def array_at(context: Any, builder: Any, kind: Any, words: Any, place: int) -> Any:
    """Return the array that some words describe."""
    read = [word_at(builder, words, place + k) for k in range(width_of(kind))]
    view = context.make_array(kind)(context, builder)  # owns nothing
    view.nitems, view.itemsize = read[:2]
    view.data = builder.inttoptr(read[2], view.data.type)
    view.shape = cgutils.pack_array(builder, read[_HEAD : _HEAD + kind.ndim])
    view.strides = cgutils.pack_array(builder, read[_HEAD + kind.ndim :])
    view.meminfo, view.parent = (
        cgutils.get_null_value(v.type) for v in (view.meminfo, view.parent)
    )
    return view._getvalue()
