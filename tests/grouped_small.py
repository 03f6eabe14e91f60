"""Posteriors of small grouped models of other kinds, by long NUTS runs.

``PYTHONPATH=.:tests python -m grouped_small`` makes them with nutpie and prints ``FROZEN``; discrete
effects are summed out by hand. The data have seed 1.
"""

from __future__ import annotations

import pprint

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from models.grouped import EXAMPLES, PRIOR_SD, coefficients
from models.grouped_references import summarise

#: Rows and groups.
SIZES = {
    "nested": (1_500, 100),
    "crossed": (1_500, 40),
    "group_covariates": (1_000, 50),
    "overdispersion": (600, 600),
    "latent_classes": (1_000, 100),
    "zero_inflation": (600, 100),
}

#: Posterior mean, standard deviation and smaller effective sample size by parameter.
FROZEN: dict[str, dict[str, tuple[float, float, float]]] = {}


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
        intercepts = pm.Normal("intercepts", 0.0, PRIOR_SD, shape=3, transform=ordered, initval=start)
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


def reference(name: str, draws: int = 2_000, chains: int = 4):
    """Figures of the population parameters."""
    import nutpie

    example = EXAMPLES[name]
    data = example.simulate(*SIZES[name])
    own = {"latent_classes": latent_classes, "zero_inflation": zero_inflation}
    centred = name == "crossed"
    model = own[name](data) if name in own else example.build(data, centred=centred)
    compiled = nutpie.compile_pymc_model(model, var_names=example.population)
    idata = nutpie.sample(
        compiled, draws=draws, tune=1_000, chains=chains, cores=1, seed=1, save_warmup=False,
        progress_bar=False,
    )  # fmt: skip
    return summarise({n: idata["posterior"][n].values for n in example.population})


def main() -> None:
    """Print ``FROZEN``."""
    out = {}
    for name in SIZES:
        figures = reference(name)
        assert max(row["r_hat"] for row in figures.values()) < 1.01, figures
        out[name] = {
            label: (
                float(f"{row['mean']:.5g}"),
                float(f"{row['sd']:.4g}"),
                int(min(row["ess_bulk"], row["ess_tail"])),
            )
            for label, row in figures.items()
        }
        print(name, out[name], flush=True)
    pprint.pprint(out)


if __name__ == "__main__":
    main()
