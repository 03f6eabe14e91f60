"""Plot of the progress of a likelihood-free run by rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.results.common import result_group
from amc_pymc.results.plots.painting import COLOURS, log_axis, marker_of_rounds, panels
from amc_pymc.results.tables import ABC

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ABC_SOURCE = "amc_pymc.sample_abc_tree"
_OWN, _FINAL, _REJECTION = "tolerance of the round", "final tolerance", "rejection"
_NEEDED = (
    "tolerance", "simulations", "acceptance", "final_acceptance", "ess", "ess_so_far",
    "final_tolerance", "prior_acceptance",
)  # fmt: skip


def plot_abc(dt: xr.DataTree, **figure_kwargs: Any) -> Figure:
    r"""Plot the progress of a likelihood-free run against the number of simulations.

    The first plot shows the tolerance of each round, the second the share of its simulations accepted
    at that tolerance and at the final one, the third its effective draws per simulation at the final
    tolerance, and the last the effective draws of all rounds so far. Dashed lines show rejection sampling
    at the final tolerance, which an adaptive run should exceed.

    Parameters
    ----------
    dt : DataTree
        Result of :func:`amc_pymc.sample_abc_tree`.
    **figure_kwargs
        Passed to :func:`matplotlib.pyplot.figure`.

    Returns
    -------
    Figure

    Raises
    ------
    TypeError, ValueError
        If `dt` is not such a result or lacks a group.

    Notes
    -----
    Effective draws are Kish's effective sample size, :math:`(\sum w)^2 / \sum w^2`, of the accepted
    simulations of a round with the weights of that round alone, or of all rounds so far. For rejection,
    they are its acceptance probability, estimated from all rounds, times the number of simulations.
    Infinite tolerances and shares of zero cannot be shown on a log axis and are omitted.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> from scipy import stats
    >>> problem = amc.SimulatorProblem(
    ...     {"mu": stats.norm(0.0, 3.0)}, lambda rng, mu: rng.normal(mu, 1.0), observed=2.0
    ... )
    >>> found = amc.sample_abc_tree(
    ...     max_simulations=10_000, model=problem, batched=True, random_seed=1, progressbar=False
    ... )
    >>> figure = amc.plot_abc(found)
    >>> figure.axes[3].get_title()
    '147 effective draws, rejection 79'
    """
    found = result_group(dt, "abc", _NEEDED, ABC_SOURCE)
    n = found.sizes.get("round", 0)
    if not n:
        raise ValueError("Group 'abc' of dt must have at least one round, got none.")
    size = found["simulations"].values.astype(float)
    spent, rate = size.cumsum(), float(found["prior_acceptance"])
    level = np.full(n, float(found["final_tolerance"]))
    alone, ess = np.full(n, rate), found["ess"].values / size
    lines: tuple[dict[str, Any], ...] = (
        {_OWN: found["tolerance"], _FINAL: level},
        {_OWN: found["acceptance"], _FINAL: found["final_acceptance"], _REJECTION: alone},
        {_FINAL: ess, _REJECTION: alone},
        {_FINAL: found["ess_so_far"], _REJECTION: rate * spent},
    )
    colours = dict(zip((_OWN, _FINAL, _REJECTION), (*COLOURS[:2], "black"), strict=True))
    figure, axes = panels(4, (10.0, 7.2), figure_kwargs, columns=2)
    parts = zip(axes, lines, _texts(found), strict=True)
    for k, (one, quantities, (title, label)) in enumerate(parts):
        one.set(title=title, xlabel=ABC["simulations"].unit, ylabel=label)
        for name, values in quantities.items():
            y = np.asarray(values, float)
            y = np.where(np.isfinite(y) & ((y > 0.0) | (k == 3)), y, np.nan)
            own = name != _REJECTION and values is not level
            one.plot(
                spent, y, label=name, color=colours[name], linestyle="--" if name == _REJECTION else "-",
                marker=marker_of_rounds(n) if own else "", markersize=4,
            )  # fmt: skip
        if k < 3:
            log_axis(one, "x", spent)
            log_axis(one, "y", np.concatenate([np.asarray(v, float) for v in quantities.values()]))
    axes[3].xaxis.set_major_formatter("{x:,.0f}")
    handles = axes[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3)
    return figure


def _texts(found: xr.Dataset) -> list[tuple[str, str]]:
    """Return the title and the label of the y axis of each plot."""
    draws, rate = float(found["ess_so_far"][-1]), float(found["prior_acceptance"])
    alone = float(found["simulations"].sum()) * rate
    times = f", {_digits(draws / alone)} × rejection" if rate > 0.0 else ""
    share = 100.0 * float(found["final_acceptance"][-1])
    return [
        (f"Tolerance {float(found['final_tolerance']):.3g} in the end", ABC["tolerance"].label),
        (f"Acceptance {_digits(share)} % in the last round", ABC["acceptance"].label),
        (f"Effective draws per simulation{times}", "per simulation"),
        (f"{draws:,.0f} effective draws, rejection {alone:,.0f}", ABC["ess_so_far"].label),
    ]


def _digits(x: float) -> str:
    """Format a number to two significant digits, without an exponent."""
    return f"{x:,.0f}" if x >= 10.0 else f"{x:.2g}"
