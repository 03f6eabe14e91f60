"""Draws from a model's prior on the unconstrained scale, many at once.

Nothing here looks at initial values.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.pytensorf import collect_default_updates, reseed_rngs
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type_other import NoneTypeT

from amc_pymc.extract.layout import FlatLayout
from amc_pymc.extract.rows import interpreted_mode

__all__ = ["PriorDraws"]


class PriorDraws:
    """Draws of all value variables from their prior.

    Parameters
    ----------
    free : list of variables
        Free random variables of the model.
    values : list of variables
        The same after their transforms.
    layout : FlatLayout

    Attributes
    ----------
    fallback : str or None
        Why draws are made one after the other, if they are.
    """

    def __init__(self, free, values, layout: FlatLayout):
        self._free, self._values, self.layout = free, values, layout
        self.fallback: str | None = None

    @classmethod
    def from_model(cls, model, layout: FlatLayout) -> PriorDraws:
        """Prior of a model; the order of its value variables is the layout's."""
        values = []
        for rv in model.free_RVs:
            if isinstance(rv.owner.op, FlatRV | HalfFlatRV):
                raise ValueError(
                    f"{rv.name!r} has an improper prior ({type(rv.owner.op).__name__[:-2]}): the evidence "
                    "is not defined. Give it a proper distribution."
                )
            transform = model.rvs_to_transforms[rv]
            values.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        return cls(list(model.free_RVs), values, layout)

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k not in ("_many", "_one")}

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D)."""
        if self.fallback is None:
            try:
                return self._batched(n, rng)
            except (NotImplementedError, TypeError, ValueError, IndexError) as error:
                self.fallback = f"{type(error).__name__}: {error}"
        fn, rngs = self._one
        reseed_rngs(rngs, rng.integers(2**32, size=4).tolist())
        return np.stack([self._flat(fn(), 1)[0] for _ in range(n)]) if n else self._none()

    def _batched(self, n: int, rng: np.random.Generator) -> np.ndarray:
        fn, rngs = self._many
        reseed_rngs(rngs, rng.integers(2**32, size=4).tolist())
        return self._flat(fn(n), n)

    def _none(self) -> np.ndarray:
        return np.empty((0, self.layout.size))

    def _flat(self, arrays, n: int) -> np.ndarray:
        columns = [
            np.asarray(a, float).reshape(n, size)
            for a, size in zip(arrays, self.layout.sizes, strict=True)
        ]
        return np.concatenate(columns, axis=1) if columns else self._none()

    @cached_property
    def _one(self):
        return self._compile([], self._values)

    @cached_property
    def _many(self):
        n = pt.lscalar("n")
        free = set(self._free)
        roots = [rv for rv in self._free if not (set(ancestors([rv])) - {rv}) & free]
        self._refuse_shared_noise(roots)
        replace = {rv: change_dist_size(rv, (n,), expand=True) for rv in roots}
        return self._compile(
            [n], vectorize_graph(_sizes_in_parameters(self._values, roots), replace)
        )

    def _refuse_shared_noise(self, roots: list) -> None:
        """Random variables inside of others would give all draws the same noise."""
        known = set(self._free)
        for node in toposort(self._values, blockers=roots):
            if not isinstance(node.op, RandomVariable | OpFromGraph):
                continue
            named = known & set(node.outputs)
            random = any(isinstance(i.type, RandomType) for i in node.inputs)
            if random and not (named and isinstance(node.op, RandomVariable)):
                name = named.pop().name if named else str(node.op)
                raise NotImplementedError(f"{name!r} is made of other random variables")

    def _compile(self, inputs, outputs):
        updates = collect_default_updates(outputs=outputs, inputs=inputs)
        fn = pytensor.function(
            inputs, outputs, updates=updates, mode=interpreted_mode(), on_unused_input="ignore"
        )
        rngs = [
            v
            for v in fn.get_shared()
            if isinstance(v, SharedVariable) and isinstance(v.type, RandomType)
        ]
        return fn, rngs


def _sizes_in_parameters(outputs: list, roots: list) -> list:
    """Say the size of dependent random variables by the shapes of their parameters.

    ``vectorize_graph`` extends an explicit size only if the first parameter gets new dimensions.
    """
    memo = {rv: rv for rv in roots}
    for node in toposort(outputs, blockers=roots):
        inputs = [memo.get(i, i) for i in node.inputs]
        op = node.op
        if isinstance(op, RandomVariable) and not isinstance(op.size_param(node).type, NoneTypeT):
            rng, size, *parameters = inputs
            spread = [
                p + pt.zeros([*size, *[1] * core], dtype=p.dtype)
                for p, core in zip(parameters, op.ndims_params, strict=True)
            ]
            new = op.make_node(rng, None, *spread).outputs
        elif all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            continue
        else:
            new = op.make_node(*inputs).outputs
        memo.update(zip(node.outputs, new, strict=True))
    return [memo.get(o, o) for o in outputs]
