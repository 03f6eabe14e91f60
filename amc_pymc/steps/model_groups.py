"""Groups of results that hold draws and data of a model."""

from __future__ import annotations

import sys

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr

from pymc import Model

from amc_pymc.reading.graphs import INTERPRETED


def natural_values(model: Model) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return a function of points that returns the free and deterministic variables of a model."""
    hidden = {v.name for v in model.value_vars} - {rv.name for rv in model.free_RVs}
    outputs = [v for v in model.unobserved_value_vars if v.name not in hidden]
    names, inputs = [v.name for v in outputs], model.value_vars
    fn = model.compile_fn(
        outputs, inputs=inputs, point_fn=False, on_unused_input="ignore", mode=INTERPRETED
    )
    return lambda point: dict(zip(names, fn(*(point[v.name] for v in inputs)), strict=True))


def draws_group(model: Model | None, values: dict[str, np.ndarray], *, n_chains: int) -> xr.Dataset:
    """Return draws (chains x draws, ...) as a dataset, with the coords and dims of the model if there is one."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import coords_and_dims_for_inferencedata

    coords, dims = ({}, {}) if model is None else coords_and_dims_for_inferencedata(model)
    shaped = {k: v.reshape(n_chains, -1, *v.shape[1:]) for k, v in values.items()}
    return dict_to_dataset(
        shaped,
        inference_library=sys.modules["amc_pymc"],  # its name and version are stored
        coords=coords,
        dims=dims,
        sample_dims=["chain", "draw"],
        check_conventions=False,  # there may be more chains than draws
    )


def add_data_groups(tree: xr.DataTree, model: Model) -> None:
    """Add observed and constant data of a model, as ``pm.sample`` does."""
    from arviz_base import dict_to_dataset
    from pymc.backends import arviz

    coords, dims = arviz.coords_and_dims_for_inferencedata(model)
    groups = {
        "observed_data": arviz.find_observations(model),
        "constant_data": arviz.find_constants(model),
    }
    told = {"inference_library": sys.modules["amc_pymc"], "coords": coords, "dims": dims}
    for name, data in groups.items():
        if data:
            tree[name] = xr.DataTree(dict_to_dataset(data, sample_dims=[], **told))
