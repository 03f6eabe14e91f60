"""Posteriors of small grouped models, by long NUTS runs.

``PYTHONPATH=.:tests python -m grouped_small [NAME ...]`` makes them with nutpie and prints ``FROZEN``; discrete
effects are summed out by hand. The data have seed 1.
"""

from __future__ import annotations

import pprint
import sys

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
    "nested": {
        "beta[0]": (-0.37289, 0.1874, 1027),
        "beta[1]": (0.53792, 0.03311, 5638),
        "beta[2]": (-0.45674, 0.03278, 5372),
        "sd_school": (0.55353, 0.1556, 1677),
        "sd_class": (0.3912, 0.04913, 3679),
    },
    "nested_hard": {
        "beta[0]": (-0.63365, 0.07906, 4803),
        "beta[1]": (0.51062, 0.06055, 5602),
        "beta[2]": (-0.42277, 0.05934, 6081),
        "sd_school": (0.11897, 0.08869, 2696),
        "sd_class": (0.2752, 0.119, 1709),
    },
    "crossed": {
        "beta[0]": (-0.6141, 0.204, 1049),
        "beta[1]": (0.59655, 0.06724, 5809),
        "beta[2]": (-0.33356, 0.06394, 5602),
        "sd_user": (0.99407, 0.1401, 4428),
        "sd_item": (0.72377, 0.1152, 3331),
    },
    "group_covariates": {
        "beta[0]": (-0.42737, 0.1031, 4415),
        "beta[1]": (0.58787, 0.08088, 5623),
        "beta[2]": (-0.36413, 0.07561, 6341),
        "gamma[0]": (0.85751, 0.1212, 4378),
        "gamma[1]": (-0.29203, 0.09129, 3981),
        "sd_group": (0.49212, 0.1221, 2042),
    },
    "overdispersion": {
        "beta[0]": (-0.46193, 0.06844, 4708),
        "beta[1]": (0.49413, 0.05116, 5918),
        "beta[2]": (-0.33898, 0.05147, 6442),
        "sd_row": (0.58636, 0.06888, 2350),
    },
    "latent_classes": {
        "beta[0]": (0.50032, 0.04043, 6342),
        "beta[1]": (-0.34284, 0.03928, 6349),
        "weights[0]": (0.51878, 0.04885, 6553),
        "weights[1]": (0.31245, 0.04641, 6220),
        "weights[2]": (0.16877, 0.03803, 5961),
        "intercepts[0]": (-1.502, 0.05923, 5837),
        "intercepts[1]": (0.20584, 0.06534, 6649),
        "intercepts[2]": (1.6065, 0.1122, 7161),
    },
    "zero_inflation": {
        "beta[0]": (-0.59845, 0.07189, 4887),
        "beta[1]": (0.54471, 0.04967, 5825),
        "beta[2]": (-0.49205, 0.0534, 4997),
        "share": (0.75183, 0.04354, 6280),
    },
}


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
    """Print ``FROZEN`` or some of it."""
    pprint.pprint({name: reference(name) for name in names or SIZES})


if __name__ == "__main__":
    main(*sys.argv[1:])
