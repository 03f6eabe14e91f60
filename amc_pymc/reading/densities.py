"""Parts of a model's log posterior that racing steps need, compiled on demand.

log posterior(x) = sum over rows l_n(x) + rest(x), in natural logarithms, where x (D,) is the flat
unconstrained vector of all value variables. ``rest`` is everything that is not a raced row: priors,
Jacobians of transforms, Potentials and other observed variables.
"""

from __future__ import annotations

import logging
import math

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import variadic_add

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.jit import FirstClassFunction
from amc_pymc.engine.printer import Printed
from amc_pymc.engine.row_kernels import loops, printed_rows
from amc_pymc.reading.graphs import (
    FlatLayout,
    WithoutCaches,
    gradient_by,
    interpreted_function,
    log_densities,
    stabilised,
)
from amc_pymc.reading.groups import Centring
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, Coefficients, PackedRows, pack_rows
from amc_pymc.reading.rows import NotRowFactorised, RowLogp, extract_rows, with_constants
from amc_pymc.reading.scalars import Columns, ElementReader, NotScalar, ParameterLeaves
from amc_pymc.tall import terms
from amc_pymc.tall.decisions import LOGP, log_density_of
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.terms import (
    Parts,
    Written,
    add_curves,
    add_slopes,
    printed_families,
    reads_many,
    total,
    with_few_entries,
    with_functions,
)

_log = logging.getLogger("amc_pymc")
#: Name of the coefficients in the layout of z.
_COEFFICIENTS = "coefficients"
#: Number of rows that a full pass evaluates at once, and number of rows read at random at once; each of these may map
#: several pages of a store into memory.
_CHUNK, _FEW = 16_384, 4_096
#: Largest product of operations and second derivatives of a prior; each takes some microseconds of differentiation.
_MOST_STEPS = 200_000


# --- rows ---------------------------------------------------------------------------------------------


class RowDensities(WithoutCaches):
    """Log-likelihoods of rows: the units of ``tall.units.Raced``.

    Parameters
    ----------
    rows : RowLogp
        Rows as functions of a flat vector (D,) with their own layout.
    expand : (E,) int array
        Coordinates in which the control variate is expanded; empty for none.
    packed : PackedRows, optional
        The same rows, packed already; ``rows`` are placeholders then.

    Raises
    ------
    NotRowFactorised
        If a row is not one expression of numbers.

    Attributes
    ----------
    store : RowStore
        Data that are read, whose pages take up memory if they are in a mapped file.
    reads : int array
        Coordinates that rows depend on.
    observed_vars : tuple of str
        Observed variables whose rows these are.
    rows_evaluated : int
        Cost of full passes so far, in evaluations of one row.

    Notes
    -----
    Functions are compiled on first use and are not pickled.
    """

    #: Name of a unit in messages; factor whose effects are integrated out of units.
    unit, factor = "row", None
    #: Costs per unit, here one row with an exact log-likelihood. Reading a row at random takes four
    #: times as long as reading it in order, and an audit reads all rows at two points.
    race_cost, audit_cost = 4.0, 2.0
    rows_read, approximation_error, settled = None, 0.0, True

    def __init__(self, rows: RowLogp, *, expand: np.ndarray, packed: PackedRows | None = None):
        self.rows, self.layout = rows, rows.layout
        self.observed_vars, self.rows_evaluated = rows.observed_vars, 0
        self.reads = rows.layout.indices(rows.value_vars)
        self.expand = np.asarray(expand, dtype=np.int64)
        try:
            self.packed = packed or pack_rows(rows)
        except NO_SCALAR_FORM as error:
            raise NotRowFactorised(
                f"The rows of {', '.join(self.observed_vars)} have no scalar form: {error}. Use NUTS, "
                "or write the likelihood with operations that have one."
            ) from error
        self.store = self.packed.store
        self.n_units = self.n_rows = len(self.store.data)

    def __getstate__(self):
        # Packed rows hold all data that are read.
        return super().__getstate__() | {"rows": self.rows.without_data()}

    @cached_property
    def raced(self) -> RowDensities:
        """The same rows as functions of z = (x, coefficients); itself if there are none."""
        coefficients, layout = self.packed.coefficients, self.layout
        if coefficients is None:
            return self
        reads = self.packed.reads
        names = [n for n, s in layout.slices.items() if np.isin(np.r_[s], reads).any()]
        names.append(_COEFFICIENTS)
        layout = FlatLayout(
            (*layout.names, _COEFFICIENTS),
            (*layout.shapes, (coefficients.size,)),
            (*layout.dtypes, "float64"),
        )
        rows = replace(self.rows.without_data(), layout=layout, value_vars=tuple(names))
        expand = layout.indices([n for n in names if n in layout.continuous])
        return RowDensities(rows, expand=expand, packed=replace(self.packed, coefficients=None))

    def in_parameters(self) -> RowDensities:
        """Return the same rows with control variates in x, not in their coefficients."""
        if self.packed.coefficients is None:
            return self
        assert self.packed.program is not None
        printed = printed_rows(self.packed.program, along_curves=True)
        packed = replace(self.packed, printed=printed, along_curves=True)
        return RowDensities(self.rows, expand=self.expand, packed=packed)

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
        packed, found = self.packed, self.packed.coefficients
        arrays = [
            np.isin(np.arange(self.layout.size), self.expand).astype(float),
            self.store.data,
            packed.printed.arrays[0],
        ]
        if found is None:
            return FirstClassFunction(getattr(loops, name), REWARDS, arrays)
        assert packed.along_curves, "control variates are functions of coefficients"
        return FirstClassFunction(getattr(terms, name), REWARDS, [*arrays, *found.curves.arrays])

    # --- full passes ----------------------------------------------------------------------------

    def _passes(self, loop, x: np.ndarray, rows: np.ndarray | None = None) -> Iterator[Any]:
        """Yield what a loop over rows returns at x, for one chunk of some or all rows after the other."""
        z, found = np.asarray(x, float), self.packed.coefficients
        z = z if found is None else found.evaluate(z)
        data, functions = self.store.data, self.packed.printed.arrays[0]
        if rows is not None:
            for start in range(0, max(1, len(rows)), _FEW):
                yield loop(z, np.asarray(rows[start : start + _FEW], np.int64), data, functions)
            return
        for start in range(0, self.n_units, _CHUNK):
            chunk = np.arange(start, min(start + _CHUNK, self.n_units))
            yield loop(z, chunk, data, functions)
            self.store.release()

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of some rows at x."""
        out = np.concatenate(list(self._passes(loops.values, x, idx)))
        self.store.touch(len(idx))
        return out

    def all_values(self, x: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (N,) of all rows at x, computed in chunks."""
        return np.concatenate(list(self.value_chunks(x)))

    def value_chunks(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the log-likelihoods of all rows at x, chunk by chunk."""
        self.rows_evaluated += self.n_units
        yield from self._passes(loops.values, x)

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the sum over all rows of l_n(x_new) - l_n(x), without a control variate."""
        pairs = zip(self._passes(loops.values, x), self._passes(loops.values, x_new))
        return float(sum(np.sum(there - here) for here, there in pairs))

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None):
        """Return the summed log-likelihood of ``rows`` (default all) and its gradient (D,)."""
        self.rows_evaluated += 3 * (self.n_units if rows is None else len(rows))
        values, slopes = map(sum, zip(*self._passes(loops.gradient, x, rows)))
        found = self.packed.coefficients
        return values, slopes if found is None else found.gradient(x, slopes)

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the Hessian (D, D) of the summed log-likelihood in the coordinates ``expand``.

        Other rows and columns are zero.
        """
        number, found = self.n_units if rows is None else len(rows), self.packed.coefficients
        self.rows_evaluated += 5 * number * len(self.expand)
        out = sum(self._passes(loops.hessian, x, rows))
        if found is not None:
            slopes = sum(slopes for _, slopes in self._passes(loops.gradient, x, rows))
            out = found.hessian(x, slopes, out)
        kept, inside = np.zeros_like(out), np.ix_(self.expand, self.expand)
        kept[inside] = out[inside]
        return kept

    def expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient (D,) and Hessian (D, D) of the sum over all rows."""
        return self.value_and_gradient(x)[1], self.hessian(x)


# --- everything else --------------------------------------------------------------------------------------


class RestDensities:
    """Log density of priors, Jacobians, Potentials and other observed variables at x (D,).

    Parameters
    ----------
    rest : sequence of variables
        Tensors whose elements add up to the log density (natural), in terms of ``value_vars``.
    value_vars : sequence of variables
        Value variables of the model; those in ``layout`` are coordinates of x.
    layout : FlatLayout
    centring : Centring, optional
        Transform, if x holds effects in place of some variables.

    Attributes
    ----------
    rest_graph, symbol : variables
        Log density as a symbolic scalar, and its input.
    prior_terms : PriorTerms or None
        Terms of x; None if they have no scalar form.
    """

    def __init__(
        self,
        rest: Sequence[Variable],
        value_vars,
        layout: FlatLayout,
        centring: Centring | None = None,
    ):
        self.symbol = pt.vector("x", shape=(layout.size,))
        plain, log_jacobian = self.symbol, 0.0
        if centring is not None:
            plain, log_jacobian = centring.symbolic_plain(self.symbol)
        terms = [pt.as_tensor(t, allow_xtensor_conversion=True).sum() for t in rest]
        total = variadic_add(*terms) if terms else pt.zeros(())
        (total,) = layout.substitute([total], value_vars, plain)
        self.rest_graph = (total + log_jacobian).astype("float64")
        self._layout, self._centring = layout, centring
        self.prior_terms: PriorTerms | None = None
        try:
            self.prior_terms = PriorTerms(self.rest_graph, self.symbol)
        except (NotScalar, TypeError, RecursionError) as error:
            _log.info("PyTensor computes the prior: it has no scalar form (%s).", error)

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point of the model to x (D,)."""
        x = self._layout.ravel(point)
        return x if self._centring is None else self._centring.effects(x)

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Convert x (D,) to values of the model's variables."""
        return self._layout.unravel(x if self._centring is None else self._centring.plain(x))

    @cached_property
    def rest(self):
        """First-class ``x -> log density`` of everything that is not raced."""
        if self.prior_terms is None:
            value = pytensor.function(
                [self.symbol], self.rest_graph * 1.0, on_unused_input="ignore"
            )
            return log_density_of(value)
        return FirstClassFunction(total, LOGP, list(self.prior_terms.values.arrays))

    def rest_value_and_gradient(self, x: np.ndarray):
        """Return the rest of the log posterior and its gradient (D,), zero at discrete coordinates."""
        terms = self.prior_terms
        if terms is None or terms.curves is None:
            value, gradient = self._value_and_gradient(x)
            return float(value), gradient
        z = x if terms.extended is None else terms.extended.evaluate(x)
        gradient = add_slopes(z, *terms.curves.arrays, np.ones(0), np.zeros(z.size))
        if terms.extended is not None:
            gradient = terms.extended.gradient(x, gradient)
        gradient[self._layout.discrete] = 0.0
        return total(x, *terms.values.arrays), gradient

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return the Hessian of the rest over some coordinates, zero elsewhere."""
        d, terms, inside = self._layout.size, self.prior_terms, np.ix_(coordinates, coordinates)
        out = np.zeros((d, d))
        if terms is None or terms.curves is None:
            found = np.array([self._product(x, e) for e in np.eye(d)[coordinates]])
            found = found.reshape(-1, d)[:, coordinates]
            out[inside] = 0.5 * (found + found.T)
            return out
        z = x if terms.extended is None else terms.extended.evaluate(x)
        curves = add_curves(z, *terms.curves.arrays, np.ones(0), np.zeros((z.size, z.size)))
        if terms.extended is not None:
            slopes = add_slopes(z, *terms.curves.arrays, np.ones(0), np.zeros(z.size))
            curves = terms.extended.hessian(x, slopes, curves)
        out[inside] = curves[inside]
        out[self._layout.discrete], out[:, self._layout.discrete] = 0.0, 0.0
        return out

    @cached_property
    def _value_and_gradient(self):
        outputs = [self.rest_graph * 1.0, gradient_by(self.symbol, self.rest_graph)]
        return interpreted_function([self.symbol], outputs, trust_input=True)

    @cached_property
    def _product(self):
        """Product of the Hessian with a vector."""
        v = pt.vector("v")
        hvp = gradient_by(self.symbol, (gradient_by(self.symbol, self.rest_graph) * v).sum())
        return interpreted_function([self.symbol, v], hvp, trust_input=True)


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
        Expressions of entries of "eta", x, and of columns of the tables.
    values : Printed
        These, compiled.
    written : Written
        Terms of (x, f, A x) that each read few entries, with the functions f.
    sums : (L, D) array
        A.
    curves : Printed or None
        The written terms with second derivatives; None if they would take too long to compile.
    extended : Coefficients or None
        Map from x to (x, f, A x), if they differ.
    """

    def __init__(self, total: Variable, x: Variable):
        self.graph, size = Graph(), x.type.shape[0]
        total, (new,) = with_constants(total, {x: x.type.shape})
        self.families: tuple[Family, ...] = ()
        layout = FlatLayout(("x",), (new.type.shape,), ("float64",))
        for piece in map(stabilised, _pieces(total)):
            # The elements of a tensor are one expression of x, with a table of what their indices select.
            shape, columns = piece.type.shape, Columns(self.graph, "column")
            if None in shape:
                raise NotScalar("the shape of a log density is not known")
            numbers = np.indices(shape).reshape(len(shape), math.prod(shape))
            index = tuple(
                self.graph.const(0) if n == 1 else columns.node(k, partial(np.asarray, numbers[k]))
                for k, n in enumerate(shape)
            )
            leaves = {new: partial(ParameterLeaves(self.graph, layout, columns), "x")}
            reader = ElementReader(self.graph, leaves, columns, loops=False)
            (expression,), used = columns.used([reader.element(piece, index)])
            table = np.column_stack([np.zeros((math.prod(shape), 0)), *used])
            self.families += (Family(expression, table, 0),)
        self.values = printed_families(self.graph, self.families, order=0)
        self.written, self.sums = Written(self.graph, self.families), np.empty((0, size))
        if any(reads_many(self.graph, f.expression) for f in self.families):
            self.written, self.sums = with_few_entries(self.graph, self.families, size)
        self.curves: Printed | None = None
        self.extended: Coefficients | None = None
        families, functions = self.written.families, self.written.functions
        steps = 0
        for f in (*families, *functions):
            n = len(self.graph.leaves([f.expression], "entry"))
            steps += len(self.graph.upstream([f.expression])) * n * (n + 1) // 2
        if steps > _MOST_STEPS:
            _log.info("PyTensor computes derivatives of the prior, which take %d steps.", steps)
            return
        self.curves = printed_families(self.graph, families, 2)
        if functions or len(self.sums):
            self.extended = Coefficients(self.graph, functions, combinations=self.sums)

    def __getstate__(self):
        return {"values": self.values, "curves": self.curves, "extended": self.extended}


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


# --- rows and everything else -----------------------------------------------------------------------


class ModelDensities(RowDensities, RestDensities):
    """Densities of the rows and of the rest of a model as functions of its flat vector x.

    Parameters
    ----------
    model : pm.Model
    observed_vars : sequence of str or variables, optional
        Observed variables with the rows, as for :func:`~amc_pymc.reading.rows.extract_rows`.
    packed : PackedRows, optional
        As for :class:`RowDensities`.
    """

    def __init__(
        self,
        model,
        observed_vars: Sequence[Any] | None = None,
        packed: PackedRows | None = None,
    ):
        rows = extract_rows(model, observed_vars)
        # Rows that depend on nothing are expanded in all variables: they are their control variates then.
        layout, read = rows.layout, rows.value_vars or rows.layout.names
        expand = layout.indices([n for n in read if n in layout.continuous])
        RowDensities.__init__(self, rows, expand=expand, packed=packed)
        factors = [*model.basic_RVs, *model.potentials]
        rest = log_densities(model, [v for v in factors if v.name not in rows.observed_vars])
        RestDensities.__init__(self, rest, model.value_vars, layout)

    def of_packed(self, packed: PackedRows) -> Self:
        """Return the same densities for packed rows, for which ``rows`` are placeholders."""
        out = object.__new__(type(self))
        out.__dict__.update(self.__getstate__())
        RowDensities.__init__(out, self.rows, expand=self.expand, packed=packed)
        return out


def parts_of(densities: RestDensities) -> Parts | None:
    """Return the terms of the prior and the coefficients; None if the prior has no scalar form."""
    terms = densities.prior_terms
    if terms is None:
        return None
    prior, sums = terms.written, terms.sums
    found = densities.packed.coefficients if isinstance(densities, RowDensities) else None
    if found is None:
        return Parts(prior, sums, Written(Graph()), densities.reads)
    size, reads = densities.layout.size, densities.packed.reads
    written = Written(found.graph, *with_functions(found.graph, found.families, size, linear=True))
    return Parts(prior, sums, written, reads[reads < size])
