"""Parts of a model's log posterior that racing steps need, compiled on demand.

log posterior(x) = sum over rows l_n(x) + rest(x), in natural logarithms, where x (D,) is the flat
unconstrained vector of all value variables. ``rest`` is everything that is not a raced row: priors,
Jacobians of transforms, Potentials and other observed variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from amc_pymc.engine.first_class import bound_function
from amc_pymc.engine.row_kernels import loops, printed_rows
from amc_pymc.reading.coefficients import Coefficients
from amc_pymc.reading.graphs import state_without_caches
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, PackedRows, consecutive, pack_rows
from amc_pymc.reading.rest import RestDensities
from amc_pymc.reading.rows import NotRowFactorised, RowLogp
from amc_pymc.tall import terms
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.raced import mask_of
from amc_pymc.tall.split import Parts, with_functions
from amc_pymc.tall.terms import Written

#: Name of the coefficients in the layout of z.
_COEFFICIENTS = "coefficients"


class RowDensities:
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
        state = state_without_caches(self)
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

    @property
    def raced(self) -> RowDensities:
        """The same rows as functions of z = (x, coefficients); itself if there are none."""
        return self if self.coefficients is None else self._in_coefficients

    @cached_property
    def _in_coefficients(self) -> RowDensities:
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
            return bound_function(getattr(loops, name), REWARDS, arrays)
        assert self.packed.along_curves, "control variates are functions of coefficients"
        return bound_function(getattr(terms, name), REWARDS, [*arrays, *found.arrays])

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
