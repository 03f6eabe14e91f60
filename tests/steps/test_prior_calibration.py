"""Simulation-based calibration for each kind of prior of coefficients (Talts et al. 2018, arXiv 1804.06788).

Parameters from the prior, data given them: the rank of the truth among posterior draws is uniform.
"""

import numpy as np
import pymc as pm
import pytest

from scipy import special, stats

import amc_pymc as amc

N, G, H, K = 240, 8, 4, 4
SETS, TUNE, DRAWS, THIN, BINS = 60, 60, 59, 10, 6
_rng = np.random.default_rng(5)
G1, G2 = _rng.permutation(N) % G, _rng.permutation(N) % H
X, LEVEL = _rng.normal(size=(N, K)), np.linspace(-1.0, 1.0, G)


def scale(name="sd", size=1.0, **kwargs):
    return pm.HalfNormal(name, size, **kwargs)


def centred():
    u = pm.Normal("u", pm.Normal("mu") + 0.5 * pm.Normal("slope") * LEVEL, scale(), shape=G)
    return u[G1]


def crossed():
    sd = scale(shape=2)
    u, w = pm.Normal("u", 0.0, sd[0], shape=G), pm.Normal("w", shape=H)
    return pm.Normal("mu") + u[G1] + sd[1] * w[G2]


def horseshoe():
    lam = pm.LogNormal("lam", 0.0, 0.7, shape=K)
    return pm.math.dot(X, scale("tau", 0.5) * lam * pm.Normal("z", shape=K))


def student():
    return pm.math.dot(X, scale(size=0.5) * pm.StudentT("z", nu=4.0, shape=K))


def r2d2():
    r2, phi = pm.Beta("r2", 2.0, 3.0), pm.Dirichlet("phi", np.ones(K))
    return pm.math.dot(X, pm.Normal("z", shape=K) * pm.math.sqrt(phi * r2 / (1.0 - r2)))


def correlated():
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
    b = pm.math.dot(pm.Normal("z", shape=(G, 2)), chol.T)
    return b[G1, 0] + b[G1, 1] * X[:, 0]


def zero_sum():
    return pm.Normal("mu") + pm.ZeroSumNormal("u", sigma=scale(), shape=G)[G1]


def random_walk():
    start = pm.Normal.dist(0.0, 1.0)
    return pm.GaussianRandomWalk("u", sigma=scale(size=0.7), init_dist=start, shape=G)[G1]


def hsgp():
    length = pm.InverseGamma("length", 5.0, 4.0)
    covariance = scale("eta") ** 2 * pm.gp.cov.Matern52(1, ls=length)
    gp = pm.gp.HSGP(m=[5], c=1.5, cov_func=covariance)
    return gp.prior("f", X=LEVEL[:, None])[G1]


#: Ways of writing a model, and effects that are integrated out.
KINDS = [
    (centred, ["u"]),
    *((build, None) for build in (centred, crossed, horseshoe, student, r2d2, correlated, zero_sum, random_walk, hsgp)),
]  # fmt: skip


def prior_draws(build, rng):
    """Unconstrained parameters (SETS, D) from the prior, and linear predictors (SETS, N)."""
    with pm.Model() as model:
        eta = build()
    forward = []
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        forward.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    *values, eta = pm.draw([*forward, eta], SETS, random_seed=rng)
    return np.concatenate([v.reshape(SETS, -1) for v in values], axis=1), eta


def ranks_of(model, truth, marginalize, rng):
    """Ranks (D,) of the parameters among draws, and the share of moves accepted."""
    step = amc.RacingMetropolis(
        model=model, race="exact", marginalize=marginalize, transitions_per_draw=THIN, audits=0, progressbar=False
    )  # fmt: skip
    assert step.prepared.densities.unit == ("row" if marginalize is None else "group")
    names, point = [v.name for v in model.value_vars], model.initial_point()
    step.setup_chain(rng, TUNE, DRAWS)
    below, accepted = np.zeros(truth.size, int), []
    for k in range(TUNE + DRAWS):
        if k == TUNE:
            step.stop_tuning()
            step.tune = False
        point, (stat,) = step.step(point)
        if k >= TUNE:
            below += np.concatenate([np.ravel(point[n]) for n in names]) < truth
            accepted.append(stat["accept"])
    return below, np.mean(accepted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:RacingMetropolis. only .* of independent moves:UserWarning")
@pytest.mark.parametrize(("build", "marginalize"), KINDS)
def test_ranks_of_the_truth_are_uniform(build, marginalize):
    rng = np.random.default_rng([7, *build.__name__.encode()])
    truths, etas = prior_draws(build, rng)
    ranks, accepted = [], []
    for truth, eta in zip(truths, etas):
        y = (rng.random(N) < special.expit(eta)).astype(int)
        with pm.Model() as model:
            pm.Bernoulli("y", logit_p=build(), observed=y)
        found, share = ranks_of(model, truth, marginalize, rng)
        ranks.append(found)
        accepted.append(share)
    print("acceptance", np.quantile(accepted, [0.0, 0.1, 0.5]))
    bins = np.transpose(ranks) * BINS // (DRAWS + 1)
    counts = np.array([np.bincount(b, minlength=BINS) for b in bins])
    p = stats.chisquare(counts, axis=1).pvalue
    print(np.sort(p)[:3], counts[p.argmin()])
    assert p.min() > 1e-3 / len(p), (build.__name__, p, counts)
