r"""Posteriors of small grouped models by long NUTS runs, kept to hold other samplers against.

``python -m models.grouped_references FOLDER [NAME ...]`` runs nutpie on the centred models of
``models.grouped.EXAMPLES``, which mix better with fifty rows in a group, and writes a JSON file per
model; ``FROZEN`` keeps what tests need. Runs with the same versions and seed give the same numbers.
Low-rank adaptation of the mass matrix finds the direction in which the intercept and all effects
move together: eight times the effective sample size of the intercept.
"""

from __future__ import annotations

import json
import sys

from pathlib import Path
from typing import Any

import numpy as np

from models.grouped import EXAMPLES

N_ROWS, N_GROUPS = 5_000, 100
NAMES = ("logistic", "poisson", "negative_binomial", "ordered", "weibull", "slope")
_DRAWS, _TUNE, _CHAINS = 2_500, 1_000, 4

Table = dict[str, dict[str, float]]

#: Posterior mean, standard deviation and smaller effective sample size (bulk, tail) by parameter.
FROZEN: dict[str, dict[str, tuple[float, float, float]]] = {}


def reference(
    name: str,
    *,
    n_rows: int = N_ROWS,
    n_groups: int = N_GROUPS,
    draws: int = _DRAWS,
    tune: int = _TUNE,
    chains: int = _CHAINS,
    cores: int = 1,
    seed: int = 1,
) -> Table:
    """Posterior of the population parameters of an example.

    Parameters
    ----------
    name : str
        Of ``models.grouped.EXAMPLES``.
    n_rows, n_groups : int
        Size of the data, which have seed 1.
    draws, tune, chains, cores, seed : int
        Of nutpie.

    Returns
    -------
    dict
        ``mean``, ``sd``, ``mcse_mean``, ``mcse_sd``, ``ess_bulk``, ``ess_tail`` and ``r_hat`` by
        scalar parameter, ``beta[0]`` and so on.
    """
    import nutpie

    example = EXAMPLES[name]
    model = example.build(example.simulate(n_rows, n_groups), centred=True)
    compiled = nutpie.compile_pymc_model(model, var_names=example.population)
    idata = nutpie.sample(
        compiled, draws=draws, tune=tune, chains=chains, cores=cores, seed=seed,
        adaptation="low_rank", save_warmup=False, progress_bar=False,
    )  # fmt: skip
    return summarise({n: idata["posterior"][n].values for n in example.population})


def summarise(draws: dict[str, np.ndarray]) -> Table:
    """Figures of every scalar parameter of draws (chain, draw, ...)."""
    from arviz_stats.base import array_stats

    out: Table = {}
    for name, values in draws.items():
        flat = values.reshape(*values.shape[:2], -1)
        for k in range(flat.shape[2]):
            x = flat[:, :, k]
            figures: dict[str, Any] = {
                "mean": x.mean(),
                "sd": x.std(ddof=1),
                "mcse_mean": array_stats.mcse(x, method="mean"),
                "mcse_sd": array_stats.mcse(x, method="sd"),
                "ess_bulk": array_stats.ess(x, method="bulk"),
                "ess_tail": array_stats.ess(x, method="tail", prob=(0.05, 0.95)),
                "r_hat": array_stats.rhat(x),
            }
            label = name if values.ndim == 2 else f"{name}[{k}]"
            out[label] = {key: float(f"{float(value):.6g}") for key, value in figures.items()}
    return out


def main(folder: str, *names: str) -> None:
    """Run and write the references."""
    for name in names or NAMES:
        path = Path(folder) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {"n_rows": N_ROWS, "n_groups": N_GROUPS, "data_seed": 1, "seed": 1}
        settings |= {
            "draws": _DRAWS,
            "tune": _TUNE,
            "chains": _CHAINS,
            "sampler": "nutpie, low_rank",
        }
        found = reference(name)
        path.write_text(
            json.dumps({"name": name, "settings": settings, "posterior": found}, indent=1)
        )
        print(name, json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
