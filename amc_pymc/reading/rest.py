"""The log density of everything in a model that is not raced, as families of scalar expressions."""

from __future__ import annotations

import logging

from collections.abc import Mapping
from functools import cached_property, partial

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.first_class import bound_function
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.reading.coefficients import Coefficients
from amc_pymc.reading.graphs import gradient_by, interpreted_function
from amc_pymc.reading.groups import Centring
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.row_program import Columns, ParameterLeaves
from amc_pymc.reading.rows import with_constants
from amc_pymc.reading.scalars import ElementReader, NotScalar, stabilised
from amc_pymc.tall.callbacks import log_density_of
from amc_pymc.tall.samplers.compiled import LOGP
from amc_pymc.tall.split import taken_apart, with_combinations, with_functions
from amc_pymc.tall.terms import Written, add_curves, add_slopes, printed_families, total

_log = logging.getLogger("amc_pymc")
#: Largest product of operations and second derivatives; each takes some microseconds of differentiation.
_MOST_STEPS = 200_000


class RestDensities:
    """Log density of priors, Jacobians, Potentials and other observed variables at x (D,).

    Parameters
    ----------
    rest : symbolic scalar
        Log density (natural) in terms of ``value_vars``.
    value_vars : sequence of variables
        Value variables of the model; those in ``layout`` are coordinates of x.
    layout : FlatLayout
    centring : Centring, optional
        Transform, if x holds effects in place of some variables.
    """

    def __init__(self, rest, value_vars, layout: FlatLayout, centring: Centring | None = None):
        self._point = pt.vector("x", shape=(layout.size,))
        plain, log_jacobian = self._point, 0.0
        if centring is not None:
            plain, log_jacobian = centring.symbolic_plain(self._point)
        rest = layout.substitute([rest], value_vars, plain)[0] + log_jacobian
        self._rest = rest.astype("float64")
        #: Log density as a symbolic scalar, and its inputs.
        self.rest_graph = self._rest, [self._point]
        self._layout, self._centring = layout, centring

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point of the model to x (D,)."""
        x = self._layout.ravel(point)
        return x if self._centring is None else self._centring.effects(x)

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Convert x (D,) to values of the model's variables."""
        return self._layout.unravel(x if self._centring is None else self._centring.plain(x))

    @cached_property
    def prior_terms(self) -> PriorTerms | None:
        """Terms of x; None, with the reason logged, if they have no scalar form."""
        try:
            return PriorTerms(self._rest, self._point)
        except (NotScalar, TypeError, RecursionError) as error:
            _log.info("PyTensor computes the prior: it has no scalar form (%s).", error)
            return None

    @cached_property
    def rest(self):
        """First-class ``x -> log density`` of everything that is not raced."""
        if self.prior_terms is None:
            value = pytensor.function([self._point], self._rest * 1.0, on_unused_input="ignore")
            return log_density_of(value)
        return bound_function(total, LOGP, list(self.prior_terms.values))

    def rest_value_and_gradient(self, x: np.ndarray):
        """Return the rest of the log posterior and its gradient (D,), zero at discrete coordinates."""
        terms, rough = self.prior_terms, self._layout.discrete
        if terms is None or terms.derivatives is None:
            value, gradient = self._value_and_gradient(x)
            return float(value), gradient
        gradient = terms.gradient(x)
        gradient[rough] = 0.0
        return total(x, *terms.values), gradient

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return the Hessian of the rest over some coordinates, zero elsewhere."""
        d, terms, inside = self._layout.size, self.prior_terms, np.ix_(coordinates, coordinates)
        out = np.zeros((d, d))
        if terms is None or terms.derivatives is None:
            found = np.array([self._product(x, e) for e in np.eye(d)[coordinates]])
            found = found.reshape(-1, d)[:, coordinates]
            out[inside] = 0.5 * (found + found.T)
            return out
        out[inside] = terms.hessian(x)[inside]
        out[self._layout.discrete], out[:, self._layout.discrete] = 0.0, 0.0
        return out

    @cached_property
    def _value_and_gradient(self):
        outputs = [self._rest * 1.0, gradient_by(self._point, self._rest)]
        return interpreted_function([self._point], outputs, trust_input=True)

    @cached_property
    def _product(self):
        """Product of the Hessian with a vector."""
        v = pt.vector("v")
        hvp = gradient_by(self._point, (gradient_by(self._point, self._rest) * v).sum())
        return interpreted_function([self._point, v], hvp, trust_input=True)


# --- families of terms ----------------------------------------------------------------------------


class PriorTerms:
    """Terms that add up to a log density at x (D,).

    Parameters
    ----------
    total : scalar variable
        Graph of the log density.
    x : vector variable
        Flat vector of static shape (D,).

    Raises
    ------
    NotScalar

    Attributes
    ----------
    graph : Graph
    families : tuple of Family
        Expressions of entries of "eta", x, and columns of the tables.
    """

    def __init__(self, total: Variable, x: Variable):
        self.graph, self._size = Graph(), x.type.shape[0]
        total, (new,) = with_constants(total, {x: x.type.shape})
        pieces = [stabilised(piece) for piece in _pieces(total)]
        self.families = tuple(_family(self.graph, piece, new) for piece in pieces)

    @cached_property
    def values(self) -> tuple[np.ndarray, ...]:
        """Arrays of the compiled terms."""
        return printed_families(self.graph, self.families, order=0).arrays

    @cached_property
    def written(self) -> tuple[Written, np.ndarray]:
        """Terms of (x, f, A x) that each read few entries, with the functions f, and A (L, D)."""
        graph, size = self.graph, self._size
        apart = taken_apart(graph, self.families)
        narrow, functions = with_functions(graph, apart, size, linear=False)
        narrow, sums = with_combinations(graph, narrow, size, size + len(functions))
        return Written(graph, narrow, functions), sums

    @cached_property
    def derivatives(self) -> tuple[tuple[np.ndarray, np.ndarray], Coefficients] | None:
        """Arrays of these terms with second derivatives, and the map to (x, f, A x).

        None if they would take too long to compile.
        """
        written, sums = self.written
        steps = 0
        for f in (*written.families, *written.functions):
            leaves = len(leaves_of(self.graph, f.expression)[0])
            steps += len(self.graph.upstream([f.expression])) * leaves * (leaves + 1) // 2
        if steps > _MOST_STEPS:
            _log.info("PyTensor computes derivatives of the prior, which take %d steps.", steps)
            return None
        terms = printed_families(self.graph, written.families, 2).arrays
        return terms, Coefficients(self.graph, written.functions, combinations=sums)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient at x (D,)."""
        assert self.derivatives is not None
        terms, extended = self.derivatives
        return extended.gradient(x, _slopes(extended.evaluate(x), terms))

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian at x (D,)."""
        assert self.derivatives is not None
        terms, extended = self.derivatives
        z = extended.evaluate(x)
        curves = np.zeros((z.size, z.size))
        add_curves(z, *terms, np.ones(0), np.arange(z.size), curves)
        return extended.hessian(x, _slopes(z, terms), curves)


def _slopes(z: np.ndarray, terms: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    out = np.zeros(z.size)
    add_slopes(z, *terms, np.ones(0), out)
    return out


def _pieces(total: Variable) -> list[Variable]:
    """Split a sum into tensors whose elements add up to it."""
    node = total.owner
    if node is not None:
        op = node.op
        if isinstance(op, CAReduce) and isinstance(op.scalar_op, Add) and total.type.ndim == 0:
            return _pieces(node.inputs[0])
        if isinstance(op, DimShuffle) and not op.drop:
            return _pieces(node.inputs[0])
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, Add):
            shapes = {i.type.shape for i in node.inputs}
            if shapes == {total.type.shape}:
                return [piece for i in node.inputs for piece in _pieces(i)]
    return [total]


def _family(graph: Graph, tensor: Variable, x: Variable) -> Family:
    """Return the elements of a tensor as one expression of x with a table."""
    shape = tensor.type.shape
    if None in shape:
        raise NotScalar("the shape of a log density is not known")
    columns = Columns(graph, "column")
    numbers = np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1), int)
    layout = FlatLayout(("x",), (x.type.shape,), ("float64",))
    leaves = {x: partial(ParameterLeaves(graph, layout, columns), "x")}
    index = tuple(
        graph.const(0) if n == 1 else columns.node(("index", k), partial(np.asarray, numbers[k]))
        for k, n in enumerate(shape)
    )
    expression = ElementReader(graph, leaves, columns, loops=False).element(tensor, index)
    (expression,), used = columns.used([expression])
    return Family(expression, np.column_stack([np.zeros((numbers.shape[1], 0)), *used]), 0)
