"""The picture of boxes: densities, scales, outlines, draws, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from scipy import stats

from amc_pymc.results.plots import plot_partition


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


def result(n_dim=2, n=12, *, prior=stats.norm(1.0, 2.0), theta=True, seed=1):
    """A result as sample_abc_tree returns it: draws of the boxes' density, on the scale of a prior."""
    lower, upper, mass = boxes(n_dim, n, seed)
    rng = np.random.default_rng(seed)
    k = rng.choice(n, 400, p=mass)
    draws = prior.ppf(rng.uniform(lower[k], upper[k]))
    both = ("box", "coordinate")
    found = {"lower": (both, lower), "upper": (both, upper), "mass": ("box", mass)}
    if theta:
        ends = (("lower", lower), ("upper", upper))
        found |= {f"theta_{k}": (both, prior.ppf(v)) for k, v in ends}
    drawn = {"x": (("chain", "draw", "x_dim_0"), draws.reshape(2, 200, n_dim))}
    posterior = xr.Dataset(drawn, attrs={"tolerance": 0.25, "effective_draws": 321.4})
    names = [f"x[{d}]" for d in range(n_dim)]
    steps = xr.Dataset(found, {"coordinate": names})
    return xr.DataTree.from_dict({"posterior": posterior, "step_posterior": steps})


def marginal(axes):
    """Densities and edges of a marginal density."""
    density, edges, _ = axes.patches[0].get_data()
    return density, edges


@pytest.mark.parametrize("prior", [stats.norm(1.0, 2.0), stats.uniform(-1.0, 4.0)])
@pytest.mark.parametrize("theta", [True, False])
def test_marginal_densities_integrate_to_one(prior, theta):
    figure = plot_partition(result(3, 40, prior=prior, theta=theta))
    assert len(figure.axes) == 3
    for axes in figure.axes:
        density, edges = marginal(axes)
        assert density @ np.diff(edges) == pytest.approx(1.0, abs=1e-12)
        assert (np.diff(edges) > 0.0).all()
        assert ("unit cube" in axes.get_xlabel()) == (not theta)
    assert figure.axes[0].get_title() == "40 boxes, tolerance 0.25, 321 effective draws"


def test_a_marginal_has_the_mass_of_draws_from_the_boxes():
    lower, upper, mass = boxes(4, 60)
    density, edges = marginal(plot_partition(result(4, 60, theta=False)).axes[1])
    expected = density * np.diff(edges)
    rng, n = np.random.default_rng(2), 200_000
    k = rng.choice(60, n, p=mass)
    seen = np.histogram(rng.uniform(lower[k, 1], upper[k, 1]), bins=edges)[0] / n
    error = np.sqrt(expected * (1.0 - expected) / n)
    z = (seen - expected) / np.maximum(error, 1.0 / n)
    assert np.abs(z).max() < 5.0


def test_outlines_are_those_of_the_boxes_and_draws_lie_on_them():
    dt = result(2, 12, prior=stats.uniform(-1.0, 4.0))
    steps = dt["step_posterior"]
    axes = plot_partition(dt).axes[2]
    corners = np.concatenate([path.vertices for path in axes.collections[0].get_paths()])
    corners = set(map(tuple, corners.tolist()))
    for name in ("theta_lower", "theta_upper"):
        assert {tuple(row) for row in steps[name].values.tolist()} <= corners
    draws = axes.lines[0].get_xydata()
    np.testing.assert_allclose(draws, dt["posterior"]["x"].values.reshape(-1, 2))


def test_coordinates_can_be_chosen():
    figure = plot_partition(result(8, 20))
    assert [axes.get_xlabel() for axes in figure.axes] == [f"x[{d}]" for d in range(6)]
    figure = plot_partition(result(3, 20), var_names=["x[2]", "x[0]"])
    assert [axes.get_xlabel() for axes in figure.axes] == ["x[2]", "x[0]"]
    for bad, error, message in (
        ("y", ValueError, "names 'y'; known are the coordinates 'x"),
        (["x", "x[0]"], ValueError, "each once"),
        ([], ValueError, "1 to 6 coordinates"),
        (3, TypeError, "a string or a sequence of strings"),
    ):
        with pytest.raises(error, match=message):
            plot_partition(result(3, 20), var_names=bad)
