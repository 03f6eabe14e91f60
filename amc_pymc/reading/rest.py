"""The log density of everything in a model that is not raced, compiled on demand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from numba import types

from amc_pymc.engine.first_class import bound_function
from amc_pymc.reading.centring import Centring
from amc_pymc.reading.held import Held
from amc_pymc.reading.interpreted import interpreted_mode
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.native import compile_graph, native_function
from amc_pymc.reading.printed_total import PrintedTotal, printed_total

__all__ = ["RestDensities", "gradient_by"]

_LOGP = types.float64(types.float64[::1])


def gradient_by(x, scalar):
    """Return the symbolic gradient (D,) of a scalar; zero where it does not depend on x."""
    return pt.zeros_like(x) + pt.grad(scalar, x, disconnected_inputs="ignore")


class RestDensities:
    """Log density of priors, Jacobians, Potentials and other observed variables at x (D,).

    Parameters
    ----------
    rest : symbolic scalar
        Log density (natural) in terms of ``value_vars``.
    value_vars : sequence of variables
        Value variables of the model; those in ``layout`` are coordinates of x.
    layout : FlatLayout
    compile_kwargs : dict, optional
        Keyword arguments for ``pytensor.function``.
    centring : Centring, optional
        Transform, if x holds effects in place of some variables.
    held : Held, optional
        Values of the variables that are not in x.
    """

    def __init__(
        self,
        rest,
        value_vars,
        layout: FlatLayout,
        compile_kwargs: dict[str, Any] | None = None,
        centring: Centring | None = None,
        held: Held | None = None,
    ):
        self._point = pt.vector("x", shape=(layout.size,))
        plain, log_jacobian = self._point, 0.0
        if centring is not None:
            plain, log_jacobian = centring.symbolic_plain(self._point)
        if held is not None:
            (rest,) = held.substitute([rest], value_vars)
        value_vars = [v for v in value_vars if v.name in layout.names]
        rest = layout.substitute([rest], value_vars, plain)[0] + log_jacobian
        self._rest = rest.astype("float64")
        self._layout, self._centring, self._held = layout, centring, held
        self._rest_kwargs = dict(compile_kwargs or {})

    @property
    def rest_graph(self):
        """Log density as a symbolic scalar, and its inputs."""
        return self._rest, [self._point]

    @cached_property
    def rest(self):
        """First-class ``x -> log density`` of everything that is not raced."""
        if self._printed_value is not None:
            kernel, program = self._printed_value
            return bound_function(kernel, _LOGP, [*self._held_values, program])
        return native_function(self._compile_rest([self._point], self._rest * 1.0), _LOGP)

    @property
    def _held_values(self) -> list[np.ndarray]:
        return [] if self._held is None else [self._held.values]

    @cached_property
    def _printed(self) -> PrintedTotal | None:
        return printed_total(self._point, self._rest, self._held and self._held.shared)

    @cached_property
    def _printed_value(self):
        return self._printed and self._printed.value()

    @cached_property
    def _printed_gradient(self):
        return self._printed and self._printed.gradient(self._layout.discrete)

    @cached_property
    def _printed_hessian(self):
        return self._printed and self._printed.hessian(self._layout.discrete)

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Convert a point of the model to x (D,)."""
        x = self._layout.ravel(point)
        return x if self._centring is None else self._centring.effects(x)

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Convert x (D,) to values of the model's variables."""
        return self._layout.unravel(x if self._centring is None else self._centring.plain(x))

    def rest_value_and_gradient(self, x: np.ndarray):
        """Return the rest of the log posterior and its gradient (D,)."""
        if self._printed_gradient is not None:
            (value, total), (slope, gradient) = self._printed_value, self._printed_gradient
            held = self._held_values
            return value(x, *held, total), slope(x, *held, gradient)
        value, gradient = self._rest_and_gradient(x)
        return float(value), gradient

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return the Hessian of the rest over some coordinates, zero elsewhere."""
        d = self._layout.size
        out = np.zeros((d, d))
        if self._printed_hessian is not None:
            kernel, program, rows, columns = self._printed_hessian
            out[rows, columns] = out[columns, rows] = kernel(x, *self._held_values, program)
            others = np.setdiff1d(np.arange(d), coordinates)
            out[others], out[:, others] = 0.0, 0.0
            return out
        for k in coordinates:
            e = np.zeros(d)
            e[k] = 1.0
            out[k] = self._rest_hvp(x, e)
        return 0.5 * (out + out.T)

    def _compile_rest(self, inputs, output):
        return compile_graph(inputs, output, **self._rest_kwargs)

    @staticmethod
    def _interpret(inputs, output):
        """Interpret a small graph that is called some hundred times: compiling would take longer."""
        return pytensor.function(
            inputs, output, mode=interpreted_mode(), on_unused_input="ignore", trust_input=True
        )

    @cached_property
    def _rest_and_gradient(self):
        outputs = [self._rest * 1.0, gradient_by(self._point, self._rest)]
        return self._interpret([self._point], outputs)

    @cached_property
    def _rest_hvp(self):
        v = pt.vector("v")
        hvp = gradient_by(self._point, (gradient_by(self._point, self._rest) * v).sum())
        return self._interpret([self._point, v], hvp)
