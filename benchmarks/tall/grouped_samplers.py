"""Peers on tall data in groups: ADVI on minibatches, lme4, and HMCECS with the groups' effects."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.jobs import Result, Stopwatch
from benchmarks.tall import hmcecs as hmcecs_
from benchmarks.tall.grouped_problems import GroupedProblem, Terms
from benchmarks.tall.outcomes import Outcome, cpu_figures, describe, posterior
from benchmarks.tall.problems import Job

_ADVI_BATCH, _ADVI_STEPS, _ADVI_RATE, _ADVI_DRAWS = 500, 50_000, 0.01, 1_000
#: Largest dimension at which HMCECS gets second-order proxies: a Hessian for every row read.
_ECS_SECOND_ORDER = 300
_PRIOR_SD = 2.0


# --- ADVI -----------------------------------------------------------------------------------------


def advi(problem: GroupedProblem, job: Job) -> Outcome:
    """PyMC's mean-field ADVI on minibatches, Adam, steps until the cap at most; ``advi:500`` rows.

    Its draws are independent ones of the approximation, so there is no effective sample size.
    """
    import pymc as pm

    size = job.count(_ADVI_BATCH)
    model = problem.batches(problem.make_data(job.n_rows, job.seed), min(size, job.n_rows))
    wanted = job.draws or _ADVI_STEPS
    look = _Deadline(job.cap)
    with model:
        fit = pm.ADVI(random_seed=job.seed)
        adam = pm.adam(learning_rate=_ADVI_RATE)
        fit.fit(wanted, obj_optimizer=adam, progressbar=False, callbacks=[look])
    look.steps.stop()
    drawn = fit.approx.sample(_ADVI_DRAWS, random_seed=job.seed)
    parameters = describe(problem, posterior(problem, drawn))
    parameters |= {key: [] for key in ("ess_bulk", "ess_tail", "r_hat")}
    taken = fit.hist.size
    status = "finished" if taken >= wanted else f"stopped at {job.cap:.0f} s"
    whole = look.steps.wall_s
    extra = {"advi_steps": taken, **cpu_figures(look.setup.cpu_s, look.steps, 0.0, whole)}
    share, status = min(size, job.n_rows) / job.n_rows, f"{status}, {taken:,} steps"
    return Outcome({}, look.setup.wall_s, 0.0, whole, share, status, extra, parameters)


class _Deadline:
    """Callback of ``pm.fit``: everything up to the first step is set-up; steps end at the cap."""

    def __init__(self, cap: float):
        self.cap = cap
        self.setup, self.steps = Stopwatch(), Stopwatch()
        self.end = np.inf

    def __call__(self, approx, losses, step) -> None:
        """Look at the clock."""
        if step == 1:
            self.setup.stop()
            self.steps, self.end = Stopwatch(), time.perf_counter() + self.cap
        if time.perf_counter() > self.end:
            raise StopIteration


# --- lme4 -----------------------------------------------------------------------------------------

_R_SCRIPT = """
suppressMessages(library(lme4))
argv <- commandArgs(trailingOnly = TRUE)
folder <- argv[1]; n <- as.integer(argv[2]); p <- as.integer(argv[3]); nagq <- as.integer(argv[4])
factors <- strsplit(argv[5], ",")[[1]]; slopes <- as.integer(argv[6])
read <- function(name, what, count, size) {
  readBin(file.path(folder, name), what, count, size = size)
}
data <- list(y = read("y", "integer", n, 4), X = matrix(read("X", "double", n * p, 8), n, p))
for (f in factors) data[[f]] <- factor(read(f, "integer", n, 4))
inner <- "1"
if (slopes > 0) for (k in 1:slopes) {
  data[[paste0("x", k)]] <- data$X[, k + 1]
  inner <- paste0(inner, " + x", k)
}
terms <- paste0("(", inner, " | ", factors, ")", collapse = " + ")
begin <- proc.time()
fit <- glmer(as.formula(paste("y ~ 0 + X +", terms)), data = data, family = binomial, nAGQ = nagq)
spent <- proc.time() - begin
vc <- as.data.frame(VarCorr(fit))
number <- function(x) paste0("[", paste(sprintf("%.10g", x), collapse = ","), "]")
cat(sprintf('{"wall": %.3f, "cpu": %.3f, "beta": %s, "se": %s, "sdcor": %s, "grp": ["%s"],
  "message": "%s"}', spent[[3]], spent[[1]] + spent[[2]], number(fixef(fit)),
  number(sqrt(diag(as.matrix(vcov(fit))))), number(vc$sdcor), paste(vc$grp, collapse = '","'),
  paste(gsub("[^A-Za-z0-9 .,:()=;<>-]", " ", fit@optinfo$conv$lme4$messages), collapse = "; ")),
  file = file.path(folder, "result.json"))
"""


def lme4(problem: GroupedProblem, job: Job) -> Outcome:
    """Maximum likelihood by lme4's glmer: estimates, standard errors of coefficients, and time.

    The Laplace approximation (nAGQ = 1), or with ``lme4:fast`` coefficients fitted in the inner
    loop (nAGQ = 0). Reading the data and starting R count as set-up.
    """
    assert problem.terms is not None
    terms = problem.terms(problem.make_data(job.n_rows, job.seed))
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = _write(terms, folder, 0 if "fast" in job.options else 1)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=job.cap)
        except subprocess.TimeoutExpired:
            watch.stop()
            nothing = {"label": [], "mean": [], "sd": []}
            status = f"stopped at {job.cap:.0f} s, no estimate"
            extra = {"sample_cpu_s": watch.cpu_s}
            return Outcome({}, 0.0, 0.0, watch.wall_s, np.nan, status, extra, nothing)
        if done.returncode:
            raise RuntimeError(f"R failed: {done.stderr.strip()[-300:]}")
        found = json.loads((folder / "result.json").read_text())
    watch.stop()
    extra = {
        "setup_cpu_s": watch.cpu_s - found["cpu"], "warmup_cpu_s": 0.0,
        "sample_cpu_s": found["cpu"], "message": found["message"],
    }  # fmt: skip
    setup = watch.wall_s - found["wall"]
    status = "finished" + (f" ({found['message'][:120]})" if found["message"] else "")
    return Outcome({}, setup, 0.0, found["wall"], np.nan, status, extra, _estimates(found))


def _write(terms: Terms, folder: Path, nagq: int) -> list[str]:
    """Write the data for R; return the command."""
    np.asfortranarray(terms.X).T.tofile(folder / "X")
    terms.y.astype(np.int32).tofile(folder / "y")
    for factor, index in terms.index.items():
        index.astype(np.int32).tofile(folder / factor)
    script = folder / "fit.R"
    script.write_text(_R_SCRIPT)
    n, p = terms.X.shape
    rscript = shutil.which("Rscript") or "Rscript"
    arguments = (folder, n, p, nagq, ",".join(terms.index), terms.n_slopes)
    return [rscript, str(script), *map(str, arguments)]


def _estimates(found: Result) -> Result:
    """Estimates under the names that the models give the parameters."""
    sdcor = found["sdcor"]
    if len(set(found["grp"])) < len(found["grp"]):  # intercept, slope and their correlation
        first, second, corr = sdcor
        chol = [first, second * corr, second * np.sqrt(1.0 - corr**2)]
        spread = {f"chol[{k}]": float(value) for k, value in enumerate(chol)}
    else:
        spread = {f"sd_{grp}": sd for grp, sd in zip(found["grp"], sdcor, strict=True)}
    return {
        "label": [f"beta[{k}]" for k in range(len(found["beta"]))] + list(spread),
        "mean": found["beta"] + list(spread.values()),
        "sd": found["se"] + [float("nan")] * len(spread),
    }


# --- HMCECS ---------------------------------------------------------------------------------------


def hmcecs(problem: GroupedProblem, job: Job) -> Outcome:
    """NumPyro's HMCECS over NUTS with all effects, its proxy at a mode.

    There is no joint mode of centred effects, so theirs is the one given the standard deviations of
    the joint mode of the non-centred ones; rows then do not depend on those, and the proxy fits
    better. ``hmcecs:noncentred`` is the other parameterisation. The proxy is of second order up to
    some hundred variables and of first order beyond, because the second needs a Hessian for every
    row of the subsample. ``hmcecs:500`` reads 500 rows.
    """
    import jax

    assert problem.terms is not None
    size = min(job.count(hmcecs_.ROWS), job.n_rows)
    terms = problem.terms(problem.make_data(job.n_rows, job.seed))
    built = Stopwatch()
    arrays = jax.tree.map(jax.numpy.asarray, (terms.X, terms.y, terms.index))
    mode = joint_mode(terms, arrays)
    centred = "noncentred" not in job.options
    if centred:
        mode |= {f"z_{f}": jax.numpy.exp(mode[f"log_sd_{f}"]) * mode[f"z_{f}"] for f in terms.index}
    kernel = _ecs_kernel(terms, mode, size, centred)
    read = _reader(problem, terms, centred)
    return hmcecs_.ecs_outcome(kernel, mode, arrays, job, size, built, read)


def joint_mode(terms: Terms, arrays) -> dict[str, np.ndarray]:
    """Mode of coefficients, log standard deviations and standardised effects together."""
    import jax

    from jax.flatten_util import ravel_pytree
    from scipy.optimize import minimize

    X, y, index = arrays

    def loss(flat):
        z = unravel(flat)
        logit = _logit(z, X, index)
        fit = jax.nn.softplus(logit).sum() - (y * logit).sum()
        fit += 0.5 * (z["beta"] ** 2).sum() / _PRIOR_SD**2
        for factor in terms.index:
            log_sd = z[f"log_sd_{factor}"]
            fit += 0.5 * (z[f"z_{factor}"] ** 2).sum() + 0.5 * jax.numpy.exp(2 * log_sd) - log_sd
        return fit

    start: dict[str, Any] = {"beta": jax.numpy.zeros(terms.X.shape[1])}
    for factor, count in terms.sizes.items():
        start |= {
            f"log_sd_{factor}": jax.numpy.asarray(-1.0),
            f"z_{factor}": jax.numpy.zeros(count),
        }
    first, unravel = ravel_pytree(start)
    both = jax.jit(jax.value_and_grad(loss))
    found = minimize(
        lambda x: tuple(map(np.asarray, both(x))), first, jac=True, method="L-BFGS-B",
        options={"maxiter": 300},
    )  # fmt: skip
    return unravel(jax.numpy.asarray(found.x))


def _logit(z, X, index, centred: bool = False):
    import jax.numpy as jnp

    out = X @ z["beta"]
    for factor, level in index.items():
        sd = 1.0 if centred else jnp.exp(z[f"log_sd_{factor}"])
        out = out + sd * z[f"z_{factor}"][level]
    return out


def _ecs_kernel(terms: Terms, mode, size: int, centred: bool):
    import jax
    import numpyro
    import numpyro.distributions as dist

    from numpyro.distributions.transforms import ExpTransform
    from numpyro.infer import HMCECS, NUTS

    log_sd = dist.TransformedDistribution(dist.HalfNormal(1.0), ExpTransform().inv)
    n_rows, columns = terms.X.shape

    def model(X, y, index):
        z = {
            "beta": numpyro.sample("beta", dist.Normal(0, _PRIOR_SD).expand([columns]).to_event(1))
        }
        for f, count in terms.sizes.items():
            z[f"log_sd_{f}"] = numpyro.sample(f"log_sd_{f}", log_sd)
            sd = jax.numpy.exp(z[f"log_sd_{f}"]) if centred else 1.0
            z[f"z_{f}"] = numpyro.sample(f"z_{f}", dist.Normal(0, sd).expand([count]).to_event(1))
        with numpyro.plate("rows", n_rows, subsample_size=size):
            x = numpyro.subsample(X, event_dim=1)
            levels = {f: numpyro.subsample(values, event_dim=0) for f, values in index.items()}
            outcome = dist.Bernoulli(logits=_logit(z, x, levels, centred))
            numpyro.sample("obs", outcome, obs=numpyro.subsample(y, event_dim=0))

    dimension = sum(np.size(value) for value in mode.values())
    degree = 2 if dimension <= _ECS_SECOND_ORDER else 1
    proxy = HMCECS.taylor_proxy(mode, degree=degree)
    return HMCECS(NUTS(model), num_blocks=min(hmcecs_.BLOCKS, size), proxy=proxy)


def _reader(problem: GroupedProblem, terms: Terms, centred: bool):
    """What is kept of the variables, under the names of the PyMC models."""
    import jax.numpy as jnp

    def read(z):
        out = {"beta": z["beta"]}
        for factor in terms.index:
            sd = jnp.exp(z[f"log_sd_{factor}"])
            effect = terms.effect.format(factor)
            out |= {f"sd_{factor}": sd, effect: z[f"z_{factor}"] * (1.0 if centred else sd)}
        return {name: out[name] for name in problem.variables}

    return read


SAMPLERS = {"advi": advi, "lme4": lme4, "hmcecs": hmcecs}
