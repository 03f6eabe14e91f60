"""Elements of tensors that are indexed, reshaped, joined or allocated."""

from __future__ import annotations

import numpy as np

from pytensor.tensor.subtensor import (
    indices_from_subtensor,
)

from amc_pymc.reading.element_reader import ElementReader, Index, NotScalar

__all__ = [
    "advanced_subtensor",
    "alloc",
    "alloc_empty",
    "arange",
    "diagonal",
    "join",
    "make_vector",
    "reshape",
    "set_advanced",
    "set_subtensor",
    "shape_entry",
    "shape_vector",
    "split",
    "subtensor",
]


def subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of a slice."""
    x, *rest = node.inputs
    kept = iter(index)
    own = []
    for axis, at in enumerate(indices_from_subtensor(rest, node.op.idx_list)):
        if isinstance(at, slice):
            start, _, step = _slice(r, at, r.shape(x)[axis])
            own.append(_stepped(r, next(kept), start, step))
        else:
            own.append(_inside(r, r.element(at), r.shape(x)[axis]))
    own += list(kept)
    return r.element(x, tuple(own))


def _slice(r: ElementReader, at: slice, length: int) -> tuple[int, int, int]:
    """Return start, length and step of a slice of constants."""

    def value(part):
        if part is None or isinstance(part, int):
            return part
        return r.number(r.element(part))

    chosen = range(length)[slice(value(at.start), value(at.stop), value(at.step))]
    return chosen.start, len(chosen), chosen.step


def _stepped(r: ElementReader, i: int, start: int, step: int) -> int:
    moved = i if step == 1 else r.make("mul", i, r.const(step))
    return moved if start == 0 else r.make("add", moved, r.const(start))


def _inside(r: ElementReader, i: int, length: int) -> int:
    """Return an index from the start for one that may count from the end."""
    number = r.graph.number(i)
    if number is not None:
        return r.const(int(number) + length if number < 0 else int(number))
    if r.negative is not None and not r.negative(i):
        return i
    return r.make("switch", r.make("lt", i, r.const(0)), _stepped(r, i, length, 1), i)


def advanced_subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of a tensor indexed by arrays."""
    x, *rest = node.inputs
    return r.element(x, _advanced_index(r, node, x, rest, index))


def _advanced_index(r: ElementReader, node, x, rest, index: Index) -> Index:
    """Return the index into x of an element of ``x[i, j, :]`` by NumPy's rules."""
    parts = list(indices_from_subtensor(rest, node.op.idx_list))
    parts += [slice(None)] * (x.type.ndim - len(parts))
    arrays = [k for k, p in enumerate(parts) if not isinstance(p, slice)]
    if any(parts[k].type.dtype == "bool" for k in arrays):
        raise NotScalar("a mask has no scalar form")
    ndim = max(parts[k].type.ndim for k in arrays)
    together = arrays == list(range(arrays[0], arrays[0] + len(arrays)))
    first = arrays[0] if together else 0
    chosen = index[first : first + ndim]
    kept = iter((*index[:first], *index[first + ndim :]))
    own = []
    for axis, part in enumerate(parts):
        length = r.shape(x)[axis]
        if isinstance(part, slice):
            start, _, step = _slice(r, part, length)
            own.append(_stepped(r, next(kept), start, step))
        else:
            own.append(_inside(r, r.broadcast(part, chosen), length))
    return tuple(own)


def set_subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of an array of which a block was set or incremented."""
    x, y, *rest = node.inputs
    numbers = [r.number(i) for i in index]
    inside: list[int] = []
    parts = list(indices_from_subtensor(rest, node.op.idx_list))
    parts += [slice(None)] * (x.type.ndim - len(parts))
    for axis, at in enumerate(parts):
        if isinstance(at, slice):
            start, number, step = _slice(r, at, r.shape(x)[axis])
            chosen = range(start, start + step * number, step)
            if numbers[axis] not in chosen:
                return r.element(x, index)
            inside.append(r.const(chosen.index(numbers[axis])))
        elif r.number(_inside(r, r.element(at), r.shape(x)[axis])) != numbers[axis]:
            return r.element(x, index)
    new = r.broadcast(y, tuple(inside))
    if node.op.set_instead_of_inc:
        return new
    return r.make("add", r.element(x, index), new)


def set_advanced(r: ElementReader, node, index: Index) -> int:
    """Read an element of an array that was set or incremented at constant arrays of indices."""
    x, y, *rest = node.inputs
    parts = list(indices_from_subtensor(rest, node.op.idx_list))
    if any(isinstance(p, slice) or p.type.dtype == "bool" for p in parts):
        raise NotScalar("an array set by slices and indices or by a mask has no scalar form")
    numbers = [r.number(i) for i in index]
    shape = np.broadcast_shapes(*(r.shape(p) for p in parts))
    out = None
    for at in r.over(shape):
        where = [r.number(_inside(r, r.broadcast(p, at), n)) for p, n in zip(parts, r.shape(x))]
        if where == numbers[: len(where)]:
            new = r.broadcast(y, (*at, *index[len(where) :]))
            if node.op.set_instead_of_inc or out is None:
                base = None if node.op.set_instead_of_inc else r.element(x, index)
                out = new if base is None else r.make("add", base, new)
            else:
                out = r.make("add", out, new)
    return r.element(x, index) if out is None else out


def reshape(r: ElementReader, node, index: Index) -> int:
    """Read an element of a reshaped tensor."""
    (x, _), (out,) = node.inputs, node.outputs
    old, new = r.shape(x), r.shape(out)
    wide_old = [a for a, n in enumerate(old) if n != 1]
    wide_new = [a for a, n in enumerate(new) if n != 1]
    if [old[a] for a in wide_old] == [new[a] for a in wide_new]:
        own = [r.const(0)] * len(old)
        for a, b in zip(wide_old, wide_new):
            own[a] = index[b]
        return r.element(x, tuple(own))
    flat = r.const(0)
    for i, n in zip(index, new):
        flat = r.make("add", r.make("mul", flat, r.const(n)), i)
    own = []
    for n in reversed(old):
        own.append(r.make("mod", flat, r.const(n)) if n > 1 else r.const(0))
        flat = r.make("floordiv", flat, r.const(n)) if n > 1 else flat
    return r.element(x, tuple(reversed(own)))


def join(r: ElementReader, node, index: Index) -> int:
    """Read an element of joined tensors."""
    axis = node.op.axis % len(index)
    sizes = [r.shape(p)[axis] for p in node.inputs]
    ends = np.cumsum(sizes)
    number = r.graph.number(index[axis])
    if number is not None:
        k = int(np.searchsorted(ends, number, side="right"))
        own = r.const(int(number - ends[k] + sizes[k]))
        return r.element(node.inputs[k], (*index[:axis], own, *index[axis + 1 :]))
    out = None
    for part, size, end in reversed(list(zip(node.inputs, sizes, ends))):
        if size == 0:
            continue
        own = r.make("sub", index[axis], r.const(int(end - size)))
        own = r.make("minimum", r.make("maximum", own, r.const(0)), r.const(size - 1))
        here = r.element(part, (*index[:axis], own, *index[axis + 1 :]))
        before = r.make("lt", index[axis], r.const(int(end)))
        out = here if out is None else r.make("switch", before, here, out)
    if out is None:
        raise NotScalar("an empty array is indexed")
    return out


def split(r: ElementReader, node, index: Index, which: int) -> int:
    """Read an element of one part of a split tensor."""
    axis = node.op.axis
    sizes = [r.number(r.element(node.inputs[1], (r.const(k),))) for k in range(which)]
    own = r.make("add", index[axis], r.const(int(sum(sizes))))
    return r.element(node.inputs[0], (*index[:axis], own, *index[axis + 1 :]))


def make_vector(r: ElementReader, node, index: Index) -> int:
    """Read an element of a vector of scalars."""
    return r.element(node.inputs[r.number(index[0])])


def alloc(r: ElementReader, node, index: Index) -> int:
    """Read an element of a tensor filled with a value."""
    return r.broadcast(node.inputs[0], index)


def alloc_empty(r: ElementReader, node, index: Index) -> int:
    """Return zero for an element without a value."""
    return r.const(0.0)


def shape_vector(r: ElementReader, node, index: Index) -> int:
    """Return an entry of a shape."""
    return r.const(r.shape(node.inputs[0])[r.number(index[0])])


def shape_entry(r: ElementReader, node, index: Index) -> int:
    """Return the length of an axis."""
    return r.const(r.shape(node.inputs[0])[node.op.i])


def arange(r: ElementReader, node, index: Index) -> int:
    """Read an element of a range."""
    start, _, step = (r.element(i) for i in node.inputs)
    return r.make("add", start, r.make("mul", step, index[0]))


def diagonal(r: ElementReader, node, index: Index) -> int:
    """Read an element of a diagonal."""
    op = node.op
    (x,) = node.inputs
    if op.offset != 0:
        raise NotScalar("a diagonal off the main one has no scalar form")
    own = list(index[:-1])
    for axis in sorted((op.axis1 % x.type.ndim, op.axis2 % x.type.ndim)):
        own.insert(axis, index[-1])
    return r.element(x, tuple(own))
