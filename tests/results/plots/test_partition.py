"""The picture of boxes: projections, scales, what is drawn, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from scipy import stats

import amc_pymc as amc

from amc_pymc.results.boxes import cell_masses
from amc_pymc.results.plots.box_axis import MOST_CELLS, box_axis
from amc_pymc.results.plots.partition import plot_partition


@pytest.fixture(autouse=True)
def close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def boxes(n_dim, n, seed=1):
    """Boxes that fill the cube, (n, n_dim) each, of random cuts, and random masses."""
    rng = np.random.default_rng(seed)
    lower, upper = np.zeros((1, n_dim)), np.ones((1, n_dim))
    while len(lower) < n:
        k, d = rng.integers(len(lower)), rng.integers(n_dim)
        cut = rng.uniform(0.2, 0.8) * (upper[k, d] - lower[k, d]) + lower[k, d]
        lower, upper = np.vstack([lower, lower[k]]), np.vstack([upper, upper[k]])
        upper[k, d] = lower[-1, d] = cut
    return lower, upper, rng.dirichlet(np.full(n, 0.5))


def result(n_dim=2, n=12, *, prior=None, names=None, theta=True, seed=1):
    """A result as sample_abc_tree returns it: draws of the boxes' density, on the scale of a prior."""
    prior = stats.norm(1.0, 2.0) if prior is None else prior
    names = [f"x[{d}]" for d in range(n_dim)] if names is None else names
    lower, upper, mass = boxes(n_dim, n, seed)
    rng = np.random.default_rng(seed)
    k = rng.choice(n, 400, p=mass)
    draws = prior.ppf(rng.uniform(lower[k], upper[k]))
    both = ("box", "coordinate")
    found = {"lower": (both, lower), "upper": (both, upper), "mass": ("box", mass)}
    if theta:
        found |= {
            f"theta_{k}": (both, prior.ppf(v)) for k, v in (("lower", lower), ("upper", upper))
        }
    drawn = {"x": (("chain", "draw", "x_dim_0"), draws.reshape(2, 200, n_dim))}
    attrs = {"tolerance": 0.25, "effective_draws": 321.4}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(drawn, attrs=attrs),
            "step_posterior": xr.Dataset(found, {"coordinate": names}),
        }
    )


def setting(pc, function, name):
    """What was set of a plot of the library 'none'; None if nothing was."""
    calls = [a for a in pc.get_viz("plot", name) if a["function"] == function]
    return calls[-1] if calls else None


def drawn(pc, key, name):
    return {k: np.asarray(v) for k, v in pc.get_viz(key, name).items() if k in "xyz"}


def integral(cells):
    return float(np.sum(cells["z"] * np.outer(np.diff(cells["x"]), np.diff(cells["y"]))))


def without(dt, group, *variables):
    groups = {k: v.to_dataset() for k, v in dt.children.items()}
    if not variables:
        return xr.DataTree.from_dict({k: v for k, v in groups.items() if k != group})
    return xr.DataTree.from_dict({**groups, group: groups[group].drop_vars(variables)})


@pytest.mark.parametrize(
    "prior", [stats.norm(1.0, 2.0), stats.uniform(-1.0, 4.0)], ids=["inf", "finite"]
)
@pytest.mark.parametrize("theta", [True, False])
def test_marginal_densities_integrate_to_one(prior, theta):
    dt = result(3, 40, prior=prior, theta=theta)
    pc = plot_partition(dt, backend="none")
    for name in ("x[0]", "x[1]", "x[2]"):
        line = drawn(pc, "marginal", name)
        assert np.trapezoid(line["y"], line["x"]) == pytest.approx(1.0, abs=1e-12)
        assert np.isfinite(line["x"]).all() and (np.diff(line["x"]) >= 0.0).all()


def test_projected_masses_are_those_of_draws_from_the_boxes():
    lower, upper, mass = boxes(4, 60)
    x, y = (box_axis(str(d), lower[:, d], upper[:, d], None, None) for d in (1, 3))
    cells = [(axis.lower, axis.upper, axis.edges) for axis in (x, y)]
    found = cell_masses(mass, *cells)
    assert found.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(2)
    n = 200_000
    k = rng.choice(60, n, p=mass)
    u = rng.uniform(lower[k], upper[k])
    seen = np.histogram2d(u[:, 1], u[:, 3], bins=(x.edges, y.edges))[0] / n
    error = np.sqrt(found * (1.0 - found) / n)
    large = n * found > 20.0
    assert large.sum() > 100
    z = (seen - found)[large] / error[large]
    assert np.abs(z).max() < 5.0
    # Of the mean square of z about 1 is expected, with an error of sqrt(2 / cells).
    assert (z**2).mean() == pytest.approx(1.0, abs=4.0 * np.sqrt(2.0 / large.sum()))
    np.testing.assert_allclose(cell_masses(mass, cells[0]), found.sum(axis=1))
    np.testing.assert_allclose(cell_masses(mass, cells[1]), found.sum(axis=0))


def test_two_dimensions_have_the_density_of_each_box():
    dt = result(2, 12, prior=stats.uniform(-1.0, 4.0))
    steps = dt["step_posterior"]
    pc = plot_partition(dt, zoom=False, backend="none")
    cells = drawn(pc, "density", "x[0], x[1]")
    assert integral(cells) == pytest.approx(1.0)
    middle = [0.5 * (steps["theta_lower"] + steps["theta_upper"]).values[:, d] for d in (0, 1)]
    at = tuple(np.searchsorted(cells[k], m) - 1 for k, m in zip("xy", middle, strict=True))
    areas = np.prod((steps["theta_upper"] - steps["theta_lower"]).values, axis=1)
    expected = (steps["mass"] / areas).values
    low = pc.get_viz("density", "x[0], x[1]")["limits"][0]
    np.testing.assert_allclose(cells["z"][at], np.maximum(expected, low))
    outline = drawn(pc, "boxes", "x[0], x[1]")
    corners = {tuple(map(float, c)) for c in zip(outline["x"], outline["y"], strict=True)}
    for box in range(12):
        assert tuple(steps["theta_lower"].values[box].tolist()) in corners
        assert tuple(steps["theta_upper"].values[box].tolist()) in corners


def test_infinite_ends_are_cut_beyond_the_draws():
    dt = result(2, 12)
    x = dt["posterior"]["x"].values[..., 0]
    pc = plot_partition(dt, backend="none")
    cells = drawn(pc, "density", "x[0], x[1]")
    assert cells["x"][0] < x.min() and cells["x"][-1] > x.max()
    low, high = setting(pc, "xlim", "x[0], x[1]")["lims"]
    margin = 0.06 * np.ptp(x)
    assert (low, high) == pytest.approx((x.min() - margin, x.max() + margin))
    whole = setting(plot_partition(dt, zoom=False, backend="none"), "xlim", "x[0], x[1]")["lims"]
    assert tuple(whole) == pytest.approx((cells["x"][0], cells["x"][-1]))


def test_a_cut_cell_beyond_the_draws_keeps_a_width():
    u = np.array([0.0, 0.5, 1.0])
    theta = np.array([-np.inf, 50.0, 1.8e308])
    axis = box_axis("a", u[:-1], u[1:], (theta[:-1], theta[1:]), np.array([0.0, 10.0]))
    np.testing.assert_allclose(axis.places, [-0.6, 50.0, 50.6])
    assert axis.view == pytest.approx((-0.6, 10.6))


@pytest.mark.parametrize("cuts", [[], [0.4], [0.3, 0.6], [0.1, 0.4, 0.5, 0.9]], ids=str)
def test_tails_cut_far_out_have_no_end(cuts):
    u = np.array([0.0, *cuts, 1.0])
    draws = np.array([-2.0, 3.0])

    def places(prior, level):
        theta = prior.ppf(np.clip(u, level, 1.0 - level))
        return box_axis("a", u[:-1], u[1:], (theta[:-1], theta[1:]), draws, zoom=False).places

    np.testing.assert_allclose(places(stats.norm(), 1e-15), places(stats.norm(), 0.0))
    assert places(stats.norm(), 1e-15)[[0, -1]] == pytest.approx([-2.3, 3.3])
    if cuts:
        uniform = places(stats.uniform(-30.0, 60.0), 0.0)
        assert uniform[[0, -1]].tolist() == [-30.0, 30.0]
    half = places(stats.expon(-1.0), 1e-15)
    assert half[[0, -1]] == pytest.approx([-1.0, 3.3])
    inside = places(stats.beta(9.0, 9.0, -1.0, 3.0), 0.0)
    assert inside[0] >= -1.0 and inside[-1] <= 2.0 and (np.diff(inside) > 0.0).all()


def test_the_mass_of_a_tail_is_where_draws_are():
    u = np.array([0.0, 0.3, 0.5, 0.7, 1.0])
    theta = stats.norm(0.0, 3.0).ppf(np.clip(u, 1e-16, 1.0 - 1e-16))
    draws = stats.norm(0.0, 3.0).ppf(np.linspace(0.001, 0.999, 500))
    axis = box_axis("a", u[:-1], u[1:], (theta[:-1], theta[1:]), draws)
    density = cell_masses(np.diff(u), (axis.lower, axis.upper, axis.edges)) / np.diff(axis.places)
    # Over 23 units, to where the quantile function is cut, it would be 0.013.
    assert density[0] == pytest.approx(0.3 / (theta[1] - axis.places[0]))
    assert density[0] > 0.03


def test_a_finite_prior_is_not_left():
    dt = result(2, 12, prior=stats.uniform(-1.0, 4.0))
    pc = plot_partition(dt, backend="none")
    low, high = setting(pc, "xlim", "x[0], x[1]")["lims"]
    assert -1.0 <= low and high <= 3.0
    whole = setting(plot_partition(dt, zoom=False, backend="none"), "xlim", "x[0], x[1]")["lims"]
    assert list(whole) == [-1.0, 3.0]


@pytest.mark.parametrize(
    "theta",
    [
        [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
        [[0.0, 3.0, 5.0], [2.0, 5.0, 6.0]],
        [[6.0, 5.0, 4.0], [5.0, 4.0, 3.0]],
        [[np.nan, 1.0, 2.0], [1.0, 2.0, np.nan]],
    ],
    ids=["discrete", "depends on others", "falling", "nan"],
)
def test_coordinates_without_a_scale_of_their_own_are_drawn_in_the_cube(theta):
    u = np.array([0.0, 0.2, 0.7, 1.0])
    axis = box_axis("a", u[:-1], u[1:], tuple(np.array(theta)), np.array([0.5]))
    assert axis.draws is None and axis.view == (0.0, 1.0)
    np.testing.assert_array_equal(axis.places, u)


def test_the_cube_is_named_and_has_no_draws():
    pc = plot_partition(result(2, 5, theta=False), backend="none")
    assert pc.get_viz("xlabel", "x[0], x[1]")["string"] == "x[0], unit cube"
    assert "draws" not in pc.viz.children
    unknown = plot_partition(result(2, 5, names=["0", "1"]), backend="none")
    assert unknown.get_viz("ylabel", "0, 1")["string"] == "1, unit cube"


def test_many_cells_are_merged_without_loss():
    lower, upper, mass = boxes(1, 1000)
    theta = tuple(stats.norm().ppf(v)[:, 0] for v in (lower, upper))
    axis = box_axis("a", lower[:, 0], upper[:, 0], theta, np.linspace(-3.0, 3.0, 50))
    assert 100 < len(axis.edges) <= MOST_CELLS + 1
    assert axis.edges[[0, -1]].tolist() == [0.0, 1.0]
    cells = cell_masses(mass, (axis.lower, axis.upper, axis.edges))
    expected = np.histogram(lower[:, 0], axis.edges, weights=mass)[0]
    np.testing.assert_allclose(cells, expected, atol=1e-12)
    np.testing.assert_allclose(stats.norm().ppf(axis.edges)[1:-1], axis.places[1:-1])


def test_draws_are_on_top_at_most_a_thousand():
    dt = result(2, 12)
    x = dt["posterior"]["x"].values.reshape(-1, 2)
    points = drawn(plot_partition(dt, backend="none"), "draws", "x[0], x[1]")
    np.testing.assert_array_equal(np.stack([points["x"], points["y"]], axis=1), x)
    many = dt.copy()
    many["posterior"] = xr.DataTree(xr.concat([dt["posterior"].to_dataset()] * 10, "draw"))
    points = drawn(plot_partition(many, backend="none"), "draws", "x[0], x[1]")
    assert len(points["x"]) == 1000
    assert (points["x"][0], points["x"][-1]) == (x[0, 0], x[-1, 0])


def test_draws_that_are_not_finite_are_left_out():
    dt = result(1, 6)
    dt["posterior"]["x"][0, :5] = np.nan
    dt["posterior"]["x"][1, :5] = np.inf
    assert len(drawn(plot_partition(dt, backend="none"), "rug", "x[0]")["x"]) == 390
    dt["posterior"]["x"][:] = np.nan
    assert "rug" not in plot_partition(dt, backend="none").viz.children


def test_coordinates_are_chosen():
    dt = result(5, 30)
    pc = plot_partition(dt, backend="none")
    assert set(pc.viz["marginal"].data_vars) == {f"x[{d}]" for d in range(4)}
    assert len(pc.viz["density"].data_vars) == 6
    assert "boxes" not in pc.viz.children
    assert list(plot_partition(dt, var_names="x[3]", backend="none").viz["plot"].data_vars) == [
        "x[3]"
    ]
    two = plot_partition(dt, var_names=["x[4]", "x[1]"], backend="none")
    assert list(two.viz["density"].data_vars) == ["x[4], x[1]"]
    assert len(plot_partition(dt, var_names="x", backend="none").viz["marginal"].data_vars) == 5
    pairs = plot_partition(dt, pairs=[("x[4]", "x[0]"), ("x[1]", "x[2]")], backend="none")
    assert list(pairs.viz["density"].data_vars) == ["x[4], x[0]", "x[1], x[2]"]
    assert pairs.get_viz("xlabel", "x[4], x[0]")["string"] == "x[4]"
    assert pairs.get_viz("ylabel", "x[4], x[0]")["string"] == "x[0]"


def test_colours_of_several_plots_are_relative_to_the_highest_of_each():
    pc = plot_partition(result(3, 30), backend="none")
    tops = [a.item()["z"].max() for a in pc.viz["density"].data_vars.values()]
    assert tops == pytest.approx([1.0] * 3)
    bar = pc.get_viz("colorbar", "x[2], x[0]")
    assert bar["string"] == "density / highest of the plot"
    assert 1e-4 <= bar["limits"][0] < bar["limits"][1] == pytest.approx(1.0)


def test_one_box_and_one_row():
    for n_dim in (1, 2, 3):
        pc = plot_partition(result(n_dim, 1), backend="none")
        title = pc.get_viz("figure_title") if n_dim > 2 else None
        if title is None:
            name = ", ".join(f"x[{d}]" for d in range(n_dim))
            title = pc.get_viz("title", name)
        assert title["string"] == "1 box, tolerance 0.25, 321 effective draws"
    dt = result(1, 4)
    dt["posterior"] = xr.DataTree(dt["posterior"].to_dataset().isel(chain=[0], draw=[0]))
    pc = plot_partition(dt, backend="none")
    low, high = setting(pc, "xlim", "x[0]")["lims"]
    assert low < dt["posterior"]["x"].item() < high
    dt["step_posterior"] = result(1, 1)["step_posterior"]
    low, high = setting(plot_partition(dt, backend="none"), "xlim", "x[0]")["lims"]
    assert low < dt["posterior"]["x"].item() < high


def test_visuals_can_be_left_out_and_altered():
    off = dict.fromkeys(("boxes", "draws", "colorbar", "title"), False)
    pc = plot_partition(result(), backend="none", visuals={**off, "xlabel": {"text": "here"}})
    assert not set(off) & set(pc.viz.children)
    assert pc.get_viz("xlabel", "x[0], x[1]")["string"] == "here"
    bare = plot_partition(result(), backend="none", visuals={"density": False})
    assert not {"density", "colorbar"} & set(bare.viz.children)


def test_a_given_collection_is_drawn_into():
    pc = plot_partition(result(), backend="none")
    assert plot_partition(result(seed=2), plot_collection=pc) is pc


def test_the_picture_in_matplotlib():
    pytest.importorskip("matplotlib")
    pc = plot_partition(result(3, 30), backend="matplotlib")
    figure = pc.get_viz("figure")
    figure.canvas.draw()
    axes = figure.axes
    assert sum(ax.axison for ax in axes[:9]) == 6
    mesh = pc.get_viz("density", "x[0], x[1]")
    expected = drawn(plot_partition(result(3, 30), backend="none"), "density", "x[0], x[1]")["z"]
    np.testing.assert_allclose(mesh.get_array().reshape(expected.T.shape), expected.T)
    assert type(mesh.norm).__name__ == "LogNorm"
    sized = plot_partition(
        result(), backend="matplotlib",
        figure_kwargs={"figsize": (4.0, 3.0), "figsize_units": "inches"},
    )  # fmt: skip
    assert sized.get_viz("figure").get_size_inches().tolist() == [4.0, 3.0]


@pytest.mark.parametrize("backend", ["matplotlib", "plotly", "bokeh"])
@pytest.mark.parametrize("n_dim", [1, 2, 3])
def test_every_library_draws_it(backend, n_dim):
    pytest.importorskip(backend)
    if backend == "plotly":
        pytest.importorskip("webcolors")
    assert plot_partition(result(n_dim, 20), backend=backend).backend == backend


def test_a_real_run():
    problem = amc.SimulatorProblem(
        {"mu": stats.norm(0.0, 3.0), "s": stats.halfnorm(0.0, 1.0)},
        lambda rng, mu, s: rng.normal(mu, 0.1 + s),
        observed=2.0,
    )
    options = {
        "max_simulations": 2000, "model": problem, "batched": True, "random_seed": 1,
        "progressbar": False,
    }  # fmt: skip
    for sample in (amc.sample_abc_tree, amc.sample_abc_rejection):
        with pytest.warns(UserWarning, match="effective|worth|weight"):
            found = sample(**options)
        pc = amc.plot_partition(found, backend="none")
        assert integral(drawn(pc, "density", "mu, s")) == pytest.approx(1.0, abs=1e-3)
        points = drawn(pc, "draws", "mu, s")
        assert np.isin(points["x"], found["posterior"]["mu"].values).all()
        marginal = drawn(
            amc.plot_partition(found, var_names="mu", backend="none"), "marginal", "mu"
        )
        assert np.trapezoid(marginal["y"], marginal["x"]) == pytest.approx(1.0)
        low, high = setting(pc, "xlim", "mu, s")["lims"]
        assert low < points["x"].min() and points["x"].max() < high


def test_what_is_no_result_is_refused():
    dt = result()
    with pytest.raises(TypeError, match=r"dt must be the xarray.DataTree .* got Dataset"):
        plot_partition(dt["posterior"].to_dataset())
    with pytest.raises(ValueError, match="dt has no group 'step_posterior', only"):
        plot_partition(without(dt, "step_posterior"))
    with pytest.raises(ValueError, match="no group 'posterior', only"):
        plot_partition(without(dt, "posterior"))
    with pytest.raises(ValueError, match="Group 'step_posterior' of dt has no mass"):
        plot_partition(without(dt, "step_posterior", "mass"))
    with pytest.raises(ValueError, match="must have boxes and coordinates"):
        plot_partition(without(dt, "step_posterior", "coordinate"))
    empty = dt.copy()
    empty["step_posterior"] = xr.DataTree(dt["step_posterior"].to_dataset().isel(box=[]))
    with pytest.raises(ValueError, match="must have boxes and coordinates"):
        plot_partition(empty)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5])
def test_bad_masses_and_bounds_are_refused(bad):
    dt = result()
    dt["step_posterior"]["mass"][0] = bad
    with pytest.raises(ValueError, match="mass in group 'step_posterior' of dt must be finite"):
        plot_partition(dt)
    dt = result()
    dt["step_posterior"]["upper"][0, 0] = bad
    with pytest.raises(ValueError, match="lower must be below upper"):
        plot_partition(dt)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"var_names": "y"}, ValueError, r"var_names names 'y'; known are .*'x\[0\]'"),
        ({"var_names": []}, ValueError, "at least one of"),
        ({"var_names": 3}, TypeError, "a string or a sequence of strings, got 3"),
        ({"var_names": [0, 1]}, TypeError, "sequence of strings"),
        ({"var_names": ["x[0]", "x"]}, ValueError, "each coordinate once"),
        ({"var_names": "x"}, ValueError, "6 coordinates at most, got 7"),
        ({"pairs": []}, TypeError, "a sequence of pairs"),
        ({"pairs": "x"}, TypeError, "a sequence of pairs"),
        ({"pairs": ["x[0]"]}, ValueError, "two different coordinates each"),
        ({"pairs": [("x[0]", "x[0]")]}, ValueError, "two different coordinates each"),
        ({"pairs": [("x[0]", "z")]}, ValueError, "pairs names 'z'; known are"),
        ({"pairs": [("x[0]", "x[1]")] * 2}, ValueError, "each pair once"),
        ({"pairs": [("x[0]", "x[1]")], "var_names": "x[0]"}, ValueError, "not both"),
        ({"visuals": {"lines": False}}, ValueError, r"keys \['lines'\]; known are density"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        plot_partition(result(7, 9), backend="none", **options)
