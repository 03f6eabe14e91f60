"""Packed rows that depend on discrete variables only through intermediate parameters."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from amc_pymc.reading.densities import ModelDensities, RowDensities
from amc_pymc.reading.native_rows import NativeRows, StoredRows
from amc_pymc.reading.parameters import ParameterCut

__all__ = ["DiscreteRows", "smooth_parameters"]


def smooth_parameters(cut: ParameterCut) -> np.ndarray:
    """Return the coordinates of eta in which rows can be expanded."""
    return np.setdiff1d(np.arange(cut.rows.layout.size), cut.rough())


class DiscreteRows(ModelDensities):
    """Densities of a model whose packed rows are functions of eta(x), not of x.

    It evaluates rows at x. Races and control variates need functions of eta, which :attr:`raced`
    provides.

    Attributes
    ----------
    cut : ParameterCut
        Map from x to eta.
    raced : RowDensities
        The same rows as functions of eta.
    """

    cut: ParameterCut
    raced: RowDensities

    @classmethod
    def of(cls, plain: ModelDensities, cut: ParameterCut, packed: NativeRows | StoredRows) -> Self:
        """Create densities with packed rows, which read eta, instead of a model's own rows."""
        out = object.__new__(cls)
        out.__dict__.update(plain.of_packed(packed).__dict__)
        kwargs = plain.compile_kwargs
        rows = RowDensities(cut.rows, expand=smooth_parameters(cut), compile_kwargs=kwargs)
        out.cut, out.raced = cut, rows.of_packed(packed)
        return out

    def values(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of some rows at x."""
        return self.raced.values(self.cut.evaluate(x), idx)

    def all_finite(self, x: np.ndarray) -> bool:
        """Whether all rows have a finite log-likelihood at x."""
        return self.raced.all_finite(self.cut.evaluate(x))

    def change(self, x: np.ndarray, x_new: np.ndarray, surrogate: Any = None) -> float:
        """Return the sum over all rows of l_n(x_new) - l_n(x), without a control variate."""
        return self.raced.change(self.cut.evaluate(x), self.cut.evaluate(x_new), surrogate)

    def value_and_gradient(self, x: np.ndarray, rows: np.ndarray | None = None):
        """Raise TypeError: rows have no gradient in x."""
        raise self._no_kernel()

    def hessian(self, x: np.ndarray, rows: np.ndarray | None = None):
        """Raise TypeError: rows have no Hessian in x."""
        raise self._no_kernel()

    def forget_expansion(self) -> None:
        """Remove the control variate."""
        super().forget_expansion()
        self.raced.forget_expansion()

    def _bound(self, native: NativeRows | StoredRows, name: str):
        raise self._no_kernel()

    @staticmethod
    def _no_kernel() -> TypeError:
        return TypeError("rows that depend on discrete variables are raced in terms of eta")
