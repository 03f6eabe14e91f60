"""Every result is the same after it was written to a netCDF file or to Zarr."""

import numpy as np
import pytest
import xarray as xr

from tests.interoperability.results import ALL, tree_of


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


@pytest.mark.parametrize("through", [through_netcdf, through_zarr], ids=["netcdf", "zarr"])
@pytest.mark.parametrize("name", ALL)
def test_a_stored_result_is_the_same(name, through, tmp_path):
    tree = tree_of(name)
    assert_same(tree, through(tree, tmp_path))
