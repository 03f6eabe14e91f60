"""Groups of results that hold draws and data of a model."""

from __future__ import annotations

import sys

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from types import ModuleType

    from pymc import Model


def draws_group(model: Model | None, values: dict[str, np.ndarray], *, n_chains: int) -> xr.Dataset:
    """Return draws (chains x draws, ...) as a dataset, with the coords and dims of the model if there is one."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import coords_and_dims_for_inferencedata

    coords, dims = ({}, {}) if model is None else coords_and_dims_for_inferencedata(model)
    shaped = {k: v.reshape(n_chains, -1, *v.shape[1:]) for k, v in values.items()}
    return dict_to_dataset(
        shaped,
        inference_library=_library(),
        coords=coords,
        dims=dims,
        sample_dims=["chain", "draw"],
        check_conventions=False,  # there may be more chains than draws
    )


def _library() -> ModuleType:
    """Return the package itself, whose name and version are stored in results."""
    return sys.modules["amc_pymc"]


def add_data_groups(tree: xr.DataTree, model: Model) -> None:
    """Add observed and constant data of a model, as ``pm.sample`` does."""
    from arviz_base import dict_to_dataset
    from pymc.backends.arviz import (
        coords_and_dims_for_inferencedata,
        find_constants,
        find_observations,
    )

    coords, dims = coords_and_dims_for_inferencedata(model)
    for group, data in (
        ("observed_data", find_observations(model)),
        ("constant_data", find_constants(model)),
    ):
        if data:
            tree[group] = xr.DataTree(
                dict_to_dataset(
                    data, inference_library=_library(), coords=coords, dims=dims, sample_dims=[]
                )
            )
