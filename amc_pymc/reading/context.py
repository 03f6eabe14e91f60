"""The model that a function works on: the one given, or that of the context."""

from __future__ import annotations

from typing import Any

import pytensor

from pymc.model.core import Model, modelcontext

__all__ = ["context_model"]


def context_model(model: Any, *, single: bool = False) -> Model:
    """Return the given model, or that in the context; ``single`` permits numbers of 32 bits.

    Raises
    ------
    TypeError
        If there is none, or it is not a ``pm.Model``.
    ValueError
        If the model, or PyTensor, uses numbers of 32 bits.
    """
    if type(model).__name__ == "DataTree":
        raise TypeError("model must be a pm.Model, got a DataTree: pass draws as idata=.")
    try:
        found = modelcontext(model)
    except TypeError:
        raise TypeError("model is missing: pass model=, or call within 'with model:'.") from None
    if not isinstance(found, Model):
        raise TypeError(f"model must be a pm.Model, got {model!r}.")
    few = [v.name for v in found.value_vars if v.dtype in ("float16", "float32")]
    if not single and (few or pytensor.config.floatX != "float64"):
        floats = pytensor.config.floatX
        what = f"{few[0]!r} is no float64" if few else f"PyTensor's floatX is {floats!r}"
        raise ValueError(
            f"model: {what}, and amc_pymc computes in float64. Set pytensor.config.floatX = "
            "'float64' (in the script, .pytensorrc or PYTENSOR_FLAGS) and make the model anew."
        )
    return found
