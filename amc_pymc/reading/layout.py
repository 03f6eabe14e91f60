"""The flat vector of all value variables of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True)
class FlatLayout:
    """Position of each value variable in the flat vector x of length D.

    Discrete variables are stored as floats and cast back inside graphs. The order is that of
    ``model.value_vars``.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def from_model(cls, model, point: Mapping[str, np.ndarray]) -> FlatLayout:
        """Create the layout of a model from one of its points."""
        names = tuple(v.name for v in model.value_vars)
        arrays = [np.asarray(point[name]) for name in names]
        return cls(names, tuple(a.shape for a in arrays), tuple(a.dtype.name for a in arrays))

    def part(self, names: Sequence[str]) -> FlatLayout:
        """Return the layout of some of the variables, in the order given."""
        kept = [self.names.index(name) for name in names]
        parts = self.names, self.shapes, self.dtypes
        return FlatLayout(*(tuple(part[k] for k in kept) for part in parts))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each variable."""
        return tuple(int(np.prod(s)) for s in self.shapes)

    @cached_property
    def size(self) -> int:
        """Length D of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Slice of each variable in the flat vector."""
        ends = np.cumsum(self.sizes).tolist()
        return {n: slice(e - s, e) for n, s, e in zip(self.names, self.sizes, ends)}

    @property
    def discrete(self) -> np.ndarray:
        """Whether each coordinate is discrete, (D,) bool."""
        return np.repeat([not self.is_continuous(n) for n in self.names], self.sizes)

    def is_continuous(self, name: str) -> bool:
        """Whether a variable has a floating dtype."""
        return self.dtypes[self.names.index(name)].startswith("float")

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """Return the sorted positions (int64) of the entries of ``names``."""
        chosen = set(names)
        parts = [np.arange(s.start, s.stop) for n, s in self.slices.items() if n in chosen]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def names_at(self, coordinates: np.ndarray) -> tuple[str, ...]:
        """Return the names of the variables that some coordinates belong to."""
        return tuple(n for n, s in self.slices.items() if np.isin(np.r_[s], coordinates).any())

    def labels(self) -> list[str]:
        """Return a readable name of each entry, such as ``beta[2]``."""
        out: list[str] = []
        for name, shape in zip(self.names, self.shapes):
            for where in np.ndindex(*shape):
                out.append(f"{name}[{', '.join(map(str, where))}]" if shape else name)
        return out

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point to a flat float64 vector (D,)."""
        x = np.empty(self.size)
        for name, place in self.slices.items():
            x[place] = np.asarray(point[name]).reshape(-1)
        return x

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Convert a flat vector to a point with the shapes and dtypes of the model."""
        return {
            name: np.asarray(x[s].reshape(shape), dtype=dtype)
            for (name, s), shape, dtype in zip(self.slices.items(), self.shapes, self.dtypes)
        }

    def split(self, x: TensorVariable) -> dict[str, TensorVariable]:
        """Split a symbolic flat vector into symbolic value variables."""
        out = {}
        for (name, s), shape, dtype in zip(self.slices.items(), self.shapes, self.dtypes):
            value = x[s.start] if shape == () else pt.reshape(x[s], shape)
            out[name] = value.astype(dtype)
        return out

    def substitute(self, outputs: Sequence[Variable], value_vars, x: TensorVariable) -> list:
        """Return graphs in which entries of the symbolic flat vector x replace the ``value_vars`` of this layout."""
        values = self.split(x)
        replace = {
            v: v.type.filter_variable(values[v.name], allow_convert=True)
            for v in value_vars
            if v.name in values
        }
        return clone_replace(list(outputs), replace, rebuild_strict=False)
