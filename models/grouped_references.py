r"""Posteriors of small grouped models from long NUTS runs, stored for comparison with other samplers.

``python -m models.grouped_references FOLDER [NAME ...]`` runs nutpie on the centred models of
``models.grouped.EXAMPLES``, which mix better with fifty rows in a group, and writes a JSON file per
model; ``FROZEN`` contains the values that tests use. Runs with the same versions and seed give the same numbers.
Low-rank adaptation of the mass matrix finds the direction in which the intercept and all effects
move together, which increases the effective sample size of the intercept eightfold.
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
FROZEN: dict[str, dict[str, tuple[float, float, float]]] = {
    "logistic": {
        "beta[0]": (-0.63226, 0.08739, 6255),
        "beta[1]": (0.56168, 0.03478, 7414),
        "beta[2]": (-0.43612, 0.03443, 7529),
        "sd_group": (0.81753, 0.07052, 6752),
    },
    "poisson": {
        "beta[0]": (-0.59271, 0.07385, 7199),
        "beta[1]": (0.51613, 0.01556, 6604),
        "beta[2]": (-0.40153, 0.01489, 7109),
        "sd_group": (0.71522, 0.05547, 7427),
    },
    "negative_binomial": {
        "beta[0]": (-0.61928, 0.07648, 7069),
        "beta[1]": (0.50636, 0.02115, 7313),
        "beta[2]": (-0.4325, 0.02066, 7540),
        "alpha": (2.1423, 0.1713, 6354),
        "sd_group": (0.7197, 0.0579, 7432),
    },
    "ordered": {
        "beta[0]": (0.48305, 0.02789, 7078),
        "beta[1]": (-0.38888, 0.0272, 7598),
        "cutpoints[0]": (-0.96154, 0.08366, 6742),
        "cutpoints[1]": (0.39188, 0.08278, 6399),
        "cutpoints[2]": (1.6186, 0.0862, 6851),
        "sd_group": (0.75875, 0.06306, 7229),
    },
    "weibull": {
        "beta[0]": (-0.60757, 0.07493, 7579),
        "beta[1]": (0.51764, 0.0177, 7378),
        "beta[2]": (-0.42099, 0.0175, 7419),
        "shape": (1.4357, 0.01915, 6900),
        "sd_group": (0.70344, 0.05443, 6845),
    },
    "slope": {
        "beta[0]": (-0.46545, 0.07337, 7245),
        "beta[1]": (0.44134, 0.05723, 6985),
        "beta[2]": (-0.39972, 0.03269, 7458),
        "chol[0]": (0.65484, 0.06064, 7674),
        "chol[1]": (-0.104, 0.06475, 7767),
        "chol[2]": (0.42929, 0.05437, 5314),
    },
}


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
    """Compute the posterior of the population parameters of an example.

    Parameters
    ----------
    name : str
        Key of ``models.grouped.EXAMPLES``.
    n_rows, n_groups : int
        Size of the data, which have seed 1.
    draws, tune, chains, cores, seed : int
        Settings of nutpie.

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
    """Summarise every scalar parameter of draws (chain, draw, ...)."""
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
