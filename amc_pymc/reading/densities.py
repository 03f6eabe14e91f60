"""Parts of a model's log posterior that racing steps need, compiled on demand.

log posterior(x) = sum over rows l_n(x) + rest(x), in natural logarithms, where x (D,) is the flat
unconstrained vector of all value variables. ``rest`` is everything that is not a raced row: priors,
Jacobians of transforms, Potentials and other observed variables.
"""

from __future__ import annotations

import logging

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.first_class import FirstClassFunction
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.row_kernels import loops, printed_rows
from amc_pymc.reading.coefficients import Coefficients
from amc_pymc.reading.graphs import WithoutCaches, gradient_by, interpreted_function
from amc_pymc.reading.groups import Centring
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, PackedRows, consecutive, pack_rows
from amc_pymc.reading.row_program import Columns, ParameterLeaves
from amc_pymc.reading.rows import NotRowFactorised, RowLogp, with_constants
from amc_pymc.reading.scalars import ElementReader, NotScalar, stabilised
from amc_pymc.tall import terms
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.compiled import LOGP, log_density_of
from amc_pymc.tall.samplers.raced import mask_of
from amc_pymc.tall.split import Parts, taken_apart, with_combinations, with_functions
from amc_pymc.tall.terms import Written, add_curves, add_slopes, printed_families, total

_log = logging.getLogger("amc_pymc")
#: Name of the coefficients in the layout of z.
_COEFFICIENTS = "coefficients"
#: Largest product of operations and second derivatives of a prior; each takes some microseconds of differentiation.
_MOST_STEPS = 200_000


# --- rows ---------------------------------------------------------------------------------------------


class RowDensities(WithoutCaches):
    """Log-likelihoods of rows, compiled on demand: the units of ``samplers.raced.Raced``.

    Parameters
    ----------
    rows : RowLogp
        Rows as functions of a flat vector (D,) with their own layout.
    expand : (E,) int array
        Coordinates in which the control variate is expanded; empty for none.
    packed : PackedRows, optional
        The same rows, packed already; ``rows`` are placeholders then.

    Notes
    -----
    Functions are compiled on first use and are not pickled.
    """

    #: Name of a unit in messages; factor whose effects are integrated out of units.
    unit, factor = "row", None
    #: Costs per unit, here one row with an exact log-likelihood. Reading a row at random takes four
    #: times as long as reading it in order, and an audit reads all rows at two points.
    race_cost, audit_cost = 4.0, 2.0
    rows_read, approximation_error = None, 0.0

    def __init__(self, rows: RowLogp, *, expand: np.ndarray, packed: PackedRows | None = None):
        self.rows, self.layout = rows, rows.layout
        self.n_units = self.n_rows = rows.n_rows if packed is None else len(packed.data)
        #: Names of the observed variables whose rows these are.
        self.observed_vars = rows.observed_vars
        #: Coordinates that rows depend on.
        self.reads = rows.layout.indices(rows.value_vars)
        self.expand = np.asarray(expand, dtype=np.int64)
        #: Cost of full passes so far, in evaluations of one row.
        self.rows_evaluated = 0
        if packed is not None:
            self.packed = packed

    def __getstate__(self):
        state = super().__getstate__()
        packed = self.__dict__.get("packed")
        if packed is not None:  # holds all data that are read
            state |= {"packed": packed, "rows": self.rows.without_data()}
        return state

    @cached_property
    def packed(self) -> PackedRows:
        """Generated kernels of the rows."""
        try:
            return pack_rows(self.rows)
        except NO_SCALAR_FORM as error:
            raise NotRowFactorised(
                f"The rows of {', '.join(self.observed_vars)} have no scalar form: {error}. Use NUTS, "
                "or write the likelihood with operations that have one."
            ) from error

    @cached_property
    def raced(self) -> RowDensities:
        """The same rows as functions of z = (x, coefficients); itself if there are none."""
        if self.coefficients is None:
            return self
        layout = FlatLayout(
            (*self.layout.names, _COEFFICIENTS),
            (*self.layout.shapes, (self.coefficients.size,)),
            (*self.layout.dtypes, "float64"),
        )
        names = [*self.layout.names_at(self.packed.reads), _COEFFICIENTS]
        rows = replace(self.rows.without_data(), layout=layout, value_vars=tuple(names))
        expand = layout.indices([n for n in names if layout.is_continuous(n)])
        return RowDensities(rows, expand=expand, packed=replace(self.packed, coefficients=None))

    def in_parameters(self) -> RowDensities:
        """Return the same rows with control variates in x, not in their coefficients."""
        if self.coefficients is None:
            return self
        assert self.packed.program is not None
        printed = printed_rows(self.packed.program, along_curves=True)
        packed = replace(self.packed, printed=printed, along_curves=True)
        return RowDensities(self.rows, expand=self.expand, packed=packed)

    @property
    def coefficients(self) -> Coefficients | None:
        """Functions of x that rows read; None if there are none."""
        return self.packed.coefficients

    def touch(self, n_rows: float) -> None:
        """Count rows read at random; the memory that a store maps for them is released now and then."""
        self.packed.store.touch(n_rows)

    def release(self) -> None:
        """Release the memory mapped for rows in a store, if any."""
        self.packed.store.release()

    def forget_errors(self) -> None:
        """Do nothing: rows have no approximation error."""

    def forget_centre(self) -> None:
        """Do nothing: expansions of rows depend only on their centre."""

    def forget_expansion(self) -> None:
        """Remove the control variate."""
        self.expand = np.empty(0, np.int64)

    # --- for compiled loops ---------------------------------------------------------------------

    @cached_property
    def rewards(self):
        """First-class ``(points (2, E), centre, rows (m,)) -> (2, m)``; row 0 is zero.

        Row 1 holds the change of each row's log-likelihood from points[0] to points[1] minus
        that of its control variate.
        """
        return self._bound("rewards")

    @cached_property
    def state_rewards(self):
        """First-class ``(points (K, E), centre, rows (m,)) -> (K, m)``.

        Row k holds the log-likelihoods at points[k] minus their control variates, the second-order
        Taylor polynomials around ``centre``.
        """
        return self._bound("state_rewards")

    def _bound(self, name: str):
        found = self.coefficients
        arrays = [mask_of(self.layout.size, self.expand), self.packed.data, self.packed.functions]
        if found is None:
            return FirstClassFunction(getattr(loops, name), REWARDS, arrays)
        assert self.packed.along_curves, "control variates are functions of coefficients"
        return FirstClassFunction(getattr(terms, name), REWARDS, [*arrays, *found.arrays])

    # --- full passes ----------------------------------------------------------------------------

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of some rows at x."""
        out = self.packed.values(self.packed.z(x), np.asarray(idx, np.int64))
        self.touch(len(idx))
        return out

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (N,) of all rows at x, computed in chunks."""
        return np.concatenate(list(self.value_chunks(x)))

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the log-likelihoods of all rows at x, chunk by chunk."""
        self.rows_evaluated += self.n_units
        yield from self._chunks(x)

    def _chunks(self, x):
        return (self.values(x, idx) for idx in consecutive(self.n_units))

    def all_finite(self, x: np.ndarray) -> bool:
        """Whether all rows have a finite log-likelihood at x."""
        return all(bool(np.isfinite(values).all()) for values in self.value_chunks(x))

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the sum over all rows of l_n(x_new) - l_n(x), without a control variate."""
        pairs = zip(self._chunks(x), self._chunks(x_new))
        return float(sum(np.sum(there - here) for here, there in pairs))

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None):
        """Return the summed log-likelihood of ``rows`` (default all) and its gradient (D,)."""
        self.rows_evaluated += 3 * (self.n_units if rows is None else len(rows))
        value, slopes = self.packed.gradient(self.packed.z(x), rows)
        if self.coefficients is None:
            return value, slopes
        return value, self.coefficients.gradient(x, slopes)

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the Hessian (D, D) of the summed log-likelihood in the coordinates ``expand``.

        Other rows and columns are zero.
        """
        number, packed = self.n_units if rows is None else len(rows), self.packed
        self.rows_evaluated += 5 * number * len(self.expand)
        z = packed.z(x)
        out = packed.hessian(z, rows)
        if self.coefficients is not None:
            out = self.coefficients.hessian(x, packed.gradient(z, rows)[1], out)
        mask = mask_of(self.layout.size, self.expand)
        return out * np.outer(mask, mask)

    def expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient (D,) and Hessian (D, D) of the sum over all rows."""
        return self.value_and_gradient(x)[1], self.hessian(x)


# --- everything else --------------------------------------------------------------------------------------


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
        return FirstClassFunction(total, LOGP, list(self.prior_terms.values))

    def rest_value_and_gradient(self, x: np.ndarray):
        """Return the rest of the log posterior and its gradient (D,), zero at discrete coordinates."""
        terms = self.prior_terms
        if terms is None or terms.derivatives is None:
            value, gradient = self._value_and_gradient(x)
            return float(value), gradient
        arrays, extended = terms.derivatives
        gradient = extended.gradient(x, _slopes(extended.evaluate(x), arrays))
        gradient[self._layout.discrete] = 0.0
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
        arrays, extended = terms.derivatives
        z = extended.evaluate(x)
        curves = np.zeros((z.size, z.size))
        add_curves(z, *arrays, np.ones(0), curves)
        out[inside] = extended.hessian(x, _slopes(z, arrays), curves)[inside]
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


def _slopes(z: np.ndarray, terms: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    out = np.zeros(z.size)
    add_slopes(z, *terms, np.ones(0), out)
    return out


def _pieces(total: Variable) -> list[Variable]:
    """Split a sum into tensors whose elements add up to it."""
    node, shape = total.owner, total.type.shape
    if node is None:
        return [total]
    adds = isinstance(getattr(node.op, "scalar_op", None), Add)
    if isinstance(node.op, CAReduce) and adds and not shape:
        return _pieces(node.inputs[0])
    if isinstance(node.op, DimShuffle) and not node.op.drop:
        return _pieces(node.inputs[0])
    if isinstance(node.op, Elemwise) and adds and {i.type.shape for i in node.inputs} == {shape}:
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


# --- rows and everything else -----------------------------------------------------------------------


class ModelDensities(RowDensities, RestDensities):
    """Densities of the rows and of the rest of a model as functions of its flat vector x.

    Parameters
    ----------
    rows, expand
        As for :class:`RowDensities`.
    rest, value_vars
        As for :class:`RestDensities`.
    """

    def __init__(self, rows: RowLogp, rest, value_vars, *, expand: np.ndarray):
        RowDensities.__init__(self, rows, expand=expand)
        RestDensities.__init__(self, rest, value_vars, self.layout)

    def of_packed(self, packed: PackedRows) -> Self:
        """Return the same densities for packed rows, for which ``rows`` are placeholders."""
        out = object.__new__(type(self))
        out.__dict__.update(self.__getstate__(), packed=packed)
        out.n_units = out.n_rows = len(packed.data)
        out.rows_evaluated = 0
        return out


def parts_of(densities: RowDensities | RestDensities) -> Parts | None:
    """Return the terms of the prior and the coefficients; None if the prior has no scalar form."""
    if densities.prior_terms is None:
        return None
    prior, sums = densities.prior_terms.written
    found = densities.coefficients if isinstance(densities, RowDensities) else None
    if found is None:
        return Parts(prior, sums, Written.nothing(), densities.reads)
    size, reads = densities.layout.size, densities.packed.reads
    written = Written(found.graph, *with_functions(found.graph, found.families, size, linear=True))
    return Parts(prior, sums, written, reads[reads < size])
