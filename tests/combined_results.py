"""Small results as amc_pymc.combine_estimators returns them, of given draws."""

import numpy as np
import xarray as xr

WEIGHTS = ["predictable", "inverse_variance", "uniform"]


def result(
    arms, rounds, costs, *, scale="natural", n_complete=None, names=None, stopped="", sd=None
):
    """A result as combine_estimators returns it, of given arms, rounds and costs of draws (n,)."""
    arms, rounds, costs = np.array(arms), np.array(rounds), np.array(costs, float)
    n_arms = arms.max() + 1
    names = [f"arm {k}" for k in range(n_arms)] if names is None else names
    n_rounds = rounds.max() + 1 if n_complete is None else n_complete
    log = "log_" if scale == "log" else ""
    keys = (f"{log}mean", f"{log}mean_mcse" if log else "mcse")
    running = {
        f"running_{keys[0]}": 10.0 * np.arange(n_rounds)[:, None] + np.arange(3),
        f"running_{keys[1]}": np.full((n_rounds, 3), 0.5) / (1.0 + np.arange(n_rounds))[:, None],
    }
    running[f"running_{keys[1]}"][0, 0] = np.nan
    draws = np.zeros((n_rounds, n_arms), int)
    np.add.at(draws, (rounds[rounds < n_rounds], arms[rounds < n_rounds]), 1)
    cost = np.bincount(rounds, costs, max(rounds.max() + 1, n_rounds))[:n_rounds]
    n = np.bincount(arms, minlength=n_arms)
    with np.errstate(divide="ignore"):
        error = (np.ones(n_arms) if sd is None else np.array(sd)) / np.sqrt(n)
    tree = xr.DataTree.from_dict(
        {
            "/estimate": xr.Dataset(
                {
                    "mean": ("weights", [4.0, 5.0, 6.0]),
                    "mcse": ("weights", [0.1, 0.2, 0.3]),
                    **({"log_mean": ("weights", [-4.0, -5.0, -6.0]),
                        "log_mean_mcse": ("weights", [0.01, 0.02, 0.03])} if log else {}),
                },
                {"weights": WEIGHTS},
            ),
            "/arms": xr.Dataset({"draws": ("arm", n), keys[1]: ("arm", error)}, {"arm": names}),
            "/rounds": xr.Dataset(
                {
                    "draws": (("round", "arm"), draws),
                    "cost": ("round", cost),
                    **{k: (("round", "weights"), v) for k, v in running.items()},
                },
                {"round": np.arange(n_rounds), "arm": names, "weights": WEIGHTS},
            ),
            "/pulls": xr.Dataset(
                {
                    "arm": ("pull", arms),
                    "round": ("pull", rounds),
                    "cost": ("pull", costs),
                }
            ),
        }
    )  # fmt: skip
    tree.attrs = {"weights": "predictable", "scale": scale, "cost": "count", "stopped": stopped}
    return tree
