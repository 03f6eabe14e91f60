"""Posteriors of small grouped models, by long NUTS runs.

``PYTHONPATH=.:tests python -m grouped_small [NAME ...]`` makes them with nutpie and prints ``grouped_small.json``; discrete
effects are summed out by hand. The data have seed 1.
"""

from __future__ import annotations

import json
import sys

from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

from models.grouped import EXAMPLES, PRIOR_SD, coefficients

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
    "latent_classes": (4_000, 100),
    "zero_inflation": (600, 100),
}

#: Posterior mean, standard deviation and smaller effective sample size by parameter.
FROZEN = json.loads(Path(__file__).with_suffix(".json").read_text())


def by_group(data, log_p):
    """Sums of rows (N, ...) over groups."""
    index, n_groups = data.groups["group"], data.n_groups["group"]
    one_hot = (index == np.arange(n_groups)[:, None]).astype(float)
    return pt.dot(one_hot, log_p)


def latent_classes(data) -> pm.Model:
    """The kinds of groups summed out."""
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(3))
        ordered = pm.distributions.transforms.ordered
        start = np.array([-1.0, 0.0, 1.0])
        intercepts = pm.Normal(
            "intercepts", 0.0, PRIOR_SD, shape=3, transform=ordered, initval=start
        )
        eta = (data.X @ coefficients(data))[:, None] + intercepts
        log_p = -pt.softplus(-(2.0 * data.y - 1.0)[:, None] * eta)
        pm.Potential("obs", pt.logsumexp(pt.log(weights) + by_group(data, log_p), axis=1).sum())
    return model


def zero_inflation(data) -> pm.Model:
    """Whether groups are idle summed out."""
    idle = np.bincount(data.groups["group"], data.y, minlength=data.n_groups["group"]) == 0
    with pm.Model() as model:
        share = pm.Beta("share", 1.0, 1.0)
        eta = data.X @ coefficients(data)
        active = pt.log(share) + by_group(data, data.y * eta - pt.exp(eta))
        both = pt.logaddexp(active, pt.log1p(-share))
        pm.Potential("obs", pt.where(idle, both, active).sum())
    return model


def reference(name: str) -> dict[str, tuple[float, float, float]]:
    """Figures of the population parameters."""
    import nutpie

    example, family = EXAMPLES[name.removesuffix("_hard")], name in FAMILIES
    data = example.simulate(*SIZES[name])
    own = {"latent_classes": latent_classes, "zero_inflation": zero_inflation}
    centred = family or name == "crossed"
    model = own[name](data) if name in own else example.build(data, centred=centred)
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
