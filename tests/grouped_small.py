"""Posteriors of small grouped models, by long NUTS runs.

``PYTHONPATH=.:tests python -m grouped_small [NAME ...]`` makes them with nutpie and prints ``grouped_small.json``.
The data have seed 1.
"""

from __future__ import annotations

import json
import sys

from pathlib import Path

import arviz as az

from models.grouped import EXAMPLES

#: Groups with intercepts, or slopes; NUTS samples the centred models, with low-rank adaptation of the mass matrix.
FAMILIES = ("logistic", "poisson", "negative_binomial", "ordered", "weibull", "slope")
#: Rows and groups.
SIZES = {
    **dict.fromkeys(FAMILIES, (5_000, 100)),
    "nested": (5_000, 100),
    "nested_hard": (1_500, 100),  # classes that differ little, if at all
    "crossed": (1_500, 40),
    "group_covariates": (1_000, 50),
    "overdispersion": (600, 600),
}

#: Posterior mean, standard deviation and smaller effective sample size by parameter.
FROZEN = json.loads(Path(__file__).with_suffix(".json").read_text())


def reference(name: str) -> dict[str, tuple[float, float, float]]:
    """Figures of the population parameters."""
    import nutpie

    example, family = EXAMPLES[name.removesuffix("_hard")], name in FAMILIES
    data = example.simulate(*SIZES[name])
    model = example.build(data, centred=family or name == "crossed")
    compiled = nutpie.compile_pymc_model(model, var_names=example.population)
    idata = nutpie.sample(
        compiled, draws=2_500 if family else 2_000, tune=1_000, chains=4, cores=1, seed=1,
        adaptation="low_rank" if family else "diag", save_warmup=False, progress_bar=False,
    )  # fmt: skip
    table = az.summary(idata, var_names=list(example.population), round_to="none")
    assert (table["r_hat"] < 1.01).all(), table
    return {
        row.Index: (
            float(f"{row.mean:.5g}"),
            float(f"{row.sd:.4g}"),
            int(min(row.ess_bulk, row.ess_tail)),
        )
        for row in table.itertuples()
    }


def main(*names: str) -> None:
    """Print the file with the figures, or some of it."""
    print(json.dumps({name: reference(name) for name in names or SIZES}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
