"""Every result is the same after it was written to a netCDF file or to Zarr."""

import numpy as np
import pytest
import xarray as xr

from amc_pymc.results.tables import RESULTS
from tests.interoperability.results import ALL, tree_of

#: Functions of the results that are made here, and groups that options ask for.
FUNCTIONS = {
    "sample_ais": "sample_ais", "estimate_evidence": "estimate_evidence",
    "product_space": "sample_product_space", "sample_abc_tree": "sample_abc_tree",
    "simulator_problem": "sample_abc_tree",
    "find_MAP_tree": "find_MAP_tree", "combine_estimators": "combine_estimators",
}  # fmt: skip
#: Groups that not every run has.
OPTIONAL = {"simulations", "probabilities"}
DTYPES = {"float": np.float64, "int": np.int64, "bool": np.bool_}


def through_netcdf(tree, folder):
    tree.to_netcdf(folder / "result.nc", engine="h5netcdf")
    with xr.open_datatree(folder / "result.nc", engine="h5netcdf") as back:
        return back.load()


def through_zarr(tree, folder):
    pytest.importorskip("zarr")
    tree.to_zarr(folder / "result.zarr", consolidated=False)
    with xr.open_datatree(folder / "result.zarr", engine="zarr", consolidated=False) as back:
        return back.load()


def kind(values):
    """Return the type of values; strings of any representation are strings."""
    dtype = values.dtype
    is_text = dtype.kind in "UT" or (dtype.kind == "O" and isinstance(values.values.flat[0], str))
    return "string" if is_text else dtype


def assert_same(one, two):
    """Equal groups, variables, coordinates, types and attributes."""
    assert set(one.groups) == set(two.groups)
    for group in one.groups:
        a, b = one[group].to_dataset(), two[group].to_dataset()
        xr.testing.assert_equal(a, b)
        for name in a.variables:
            assert kind(a[name]) == kind(b[name]), (group, name)
            assert_same_attributes(a[name].attrs, b[name].attrs, (group, name))
        assert_same_attributes(one[group].attrs, two[group].attrs, group)


def assert_same_attributes(one, two, where):
    assert set(one) == set(two), where
    for key, value in one.items():
        assert np.shape(value) == np.shape(two[key]), (where, key)
        np.testing.assert_array_equal(value, two[key], err_msg=f"{where} {key}")


@pytest.mark.slow
@pytest.mark.parametrize("through", [through_netcdf, through_zarr], ids=["netcdf", "zarr"])
@pytest.mark.parametrize("name", ALL)
def test_a_stored_result_is_the_same(name, through, tmp_path):
    tree = tree_of(name)
    assert_same(tree, through(tree, tmp_path))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_variables_are_declared_and_described(name):
    """Each variable of a group is in the table of the group, with these dims, this type and these attributes."""
    tree, found = tree_of(name), set()
    for group, table in RESULTS[FUNCTIONS[name]].items():
        if group not in tree.children:
            continue
        data = tree[group].to_dataset()
        of_model = set(tree["posterior"].data_vars) if "posterior" in tree.children else set()
        assert set(data.data_vars) <= set(table) | of_model, group
        for variable in set(table) & set(data.data_vars):
            declared, array = table[variable], data[variable]
            assert array.dims == declared.dims
            assert declared.dtype == "text" or array.dtype == DTYPES[declared.dtype]
            assert declared.attrs.items() <= array.attrs.items()
            found.add(group)
    assert found >= set(RESULTS[FUNCTIONS[name]]) - OPTIONAL


@pytest.mark.parametrize("step", ["Metropolis", "Gibbs"])
def test_statistics_of_steps_are_declared(step):
    stats = tree_of(f"racing_{step.lower()}")["sample_stats"]
    assert set(stats.data_vars) == set(RESULTS[f"Racing{step}"]["sample_stats"])
