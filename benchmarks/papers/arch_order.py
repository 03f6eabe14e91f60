"""Which order of an ARCH model: product-space chains that read few rows, and exact ones.

    python -m benchmarks.papers.arch_order                    # 5 chains of 100,000 draws, an hour or two
    python -m benchmarks.papers.arch_order --draws 20000
    python -m benchmarks.papers.arch_order --quick            # two orders, some minutes

Section 5.2 and figure 2 of Chen & Ghahramani (2016) on a real return series. Every method runs the
same number of chains and draws; what is compared is likelihood evaluations (one row under one
model). Prints tables in Markdown and writes them, JSON and CSV into results/.
"""

from __future__ import annotations

import time

import numpy as np

from scipy.special import log_ndtr

from amc_pymc.rng import as_generator
from benchmarks.harness import options, results
from benchmarks.harness.intervals import clopper_pearson
from benchmarks.harness.jobs import Result
from benchmarks.harness.tables import markdown, number, percent, share_of
from benchmarks.papers.data_space import DataControl

_NAME = "arch_order"
_TITLES = {"taylor": "racing, expansion in parameters", "exact": "all rows"}
HEADERS = (
    "method", "draws", "evaluations per draw", "fewer than exact", "ESS of q",
    "evaluations per effective draw", "fewer than exact for an error", "set-up s",
    "s per 1000 draws", "index: wrong decisions", "parameters: wrong decisions", "accepted",
)  # fmt: skip


def main(o) -> None:
    """Run all methods, print and save the tables."""
    from models.arch_order import arch_models, load_returns, reference_probabilities

    returns = load_returns()
    models = arch_models(returns, o.orders)
    _, reference = reference_probabilities(returns, o.orders, seed=o.seed)
    rows: list[Result] = []
    shares: list[list[str]] = []
    for method in _TITLES:
        row, found = run(method, models, o)
        rows.append(row)
        shares += posterior_lines(method, models, found, reference)
    text = "\n\n".join(
        [
            f"# ARCH order of the NASDAQ: {o.chains} chains",
            f"{rows[0]['n_rows']:,} returns, orders {', '.join(map(str, o.orders))}, "
            f"{o.draws:,} draws after {o.tune:,} to tune, delta 0.05, first batch 50.",
            markdown(HEADERS, [line(r, rows[-1]) for r in rows]),
            "## Posterior of the order",
            markdown(("method", *models, "largest difference from importance sampling"), shares),
            "## What the control variates leave of the variance",
            markdown(("method", *models), variance_lines(models, o)),
        ]
    )
    print(text)
    results.save(o, _NAME, rows, text)


def run(method: str, models, o) -> tuple[Result, object]:
    """One method: its costs and its result."""
    from arviz_stats.base import array_stats

    import amc_pymc as amc

    settings = {"taylor": {}, "exact": {"race": "exact", "audits": 0}}[method]
    begin = time.perf_counter()
    result = amc.sample_product_space(
        models, draws=o.draws, tune=o.tune, chains=o.chains, cores=o.cores, random_seed=o.seed,
        progressbar=False, **settings,
    )  # fmt: skip
    whole = time.perf_counter() - begin
    per_draw, space = result["sample_stats"], result["product_space"]
    sampled = float(per_draw.attrs.get("sampling_time", whole))
    decisions = {
        f"{step}_{kind}": int(per_draw[f"race_{kind}"].sel(step=step).sum())
        for kind in ("audited", "wrong")
        for step in ("index", "parameters")
    }
    n_rows = next(iter(models.values()))["r"].eval().shape[0]
    ess = float(array_stats.ess(result["posterior"]["model_index"].values.astype(float)))
    return {
        "method": method,
        "n_rows": n_rows,
        "draws": o.draws * o.chains,
        "evaluations": float(per_draw["row_evaluations"].mean()),
        "ess": ess,
        "setup_s": whole - sampled,
        "sample_s": sampled,
        "accepted": float(per_draw["accept"].mean()),
        **decisions,
        **{name: space[name].values.tolist() for name in ("visits", "prob", "prob_mcse")},
    }, result


def line(row: Result, exact: Result) -> list[str]:
    """One method, beside the exact one."""
    per_effective, of_exact = (r["evaluations"] * r["draws"] / r["ess"] for r in (row, exact))
    fewer, effective = exact["evaluations"] / row["evaluations"], of_exact / per_effective
    return [
        _TITLES[row["method"]], f"{row['draws']:,}", number(row["evaluations"], 6),
        f"{number(fewer)}x", number(row["ess"], 4), number(per_effective, 3),
        f"{number(effective)}x", number(row["setup_s"]),
        number(1000.0 * row["sample_s"] / row["draws"]), _wrong(row, "index"),
        _wrong(row, "parameters"), percent(row["accepted"]),
    ]  # fmt: skip


def _wrong(row: Result, step: str) -> str:
    audited, wrong = row[f"{step}_audited"], row[f"{step}_wrong"]
    return share_of(wrong, audited, *clopper_pearson(wrong, audited))


def posterior_lines(method, models, result, reference) -> list[list[str]]:
    """Probabilities of the orders, in nats against the best one, with their errors."""
    space = result["product_space"]
    best = str(space["model"].values[int(np.nanargmax(space["prob"].values))])
    log_bf = space["log_bf"].sel(against=best)
    error = space["log_bf_mcse"].sel(against=best)
    cells = [
        f"{float(log_bf.sel(model=m)):+.2f} ± {number(float(error.sel(model=m)), 2)}"
        for m in models
    ]
    truth = {m: reference[m][0] for m in models}
    z = [
        (float(log_bf.sel(model=m)) - np.log(truth[m] / truth[best]))
        for m in models
        if truth[m] > 0.0 and np.isfinite(float(log_bf.sel(model=m)))
    ]
    worst = f"{max(z, key=abs):+.2f} nats"
    out = [[f"{_TITLES[method]}, log Bayes factor against {best}", *cells, worst]]
    if method == "taylor":
        against = [f"{np.log(reference[m][0] / reference[best][0]):+.2f}" for m in models]
        out.insert(0, [f"importance sampling, against {best}", *against, "-"])
    return out


def variance_lines(models, o) -> list[list[str]]:
    """Plain over residual variance of the rows' rewards between two draws of the pseudo-prior."""
    import amc_pymc as amc

    from models.arch_order import Rows

    steps = [amc.RacingMetropolis(model=model, audits=0) for model in models.values()]

    def natural(x):
        return -log_ndtr(-x)

    def in_parameters(prepared, _):
        raced, centre = prepared.raced, prepared.surrogate.centre

        def residuals(points, rows):
            return residuals(raced.state_rewards, prepared.eta(points), centre, rows)

        return residuals, prepared.exact_rows

    def in_data(bins, outliers):
        def control_of(prepared, model):
            rows = Rows(model.rvs_to_values[model["r"]].eval(), model["squares"].get_value())
            at = natural(prepared.fit.mean)
            control = DataControl(rows, at, bins, outliers, as_generator(o.seed))
            return lambda points, n: [
                control.residuals(natural(x), n) for x in points
            ], control.exact

        return control_of

    out = []
    for title, control_of in (
        ("expansion in parameters", in_parameters),
        ("expansion in data, 10 x 10 bins, 20 % outliers (the paper's)", in_data(10, 0.2)),
        ("expansion in data, 20 x 20 bins, 2 % outliers", in_data(20, 0.02)),
    ):
        found = [
            reduction(step.prepared, *control_of(step.prepared, model), as_generator(o.seed))
            for step, model in zip(steps, models.values(), strict=True)
        ]
        out.append([title, *map(number, found)])
    return out


def reduction(prepared, residuals, exact, rng, pairs: int = 8) -> float:
    """Median over pairs of points of plain variance over residual variance of raced rows."""
    rows = np.setdiff1d(np.arange(prepared.densities.n_units), exact)
    found = []
    for _ in range(pairs):
        points = np.stack([prepared.fit.draw(rng) for _ in range(2)])
        plain = np.subtract(*(prepared.densities.values(x, rows) for x in points))
        found.append(np.var(plain) / np.var(np.subtract(*residuals(points, rows))))
    return float(np.median(found))


if __name__ == "__main__":
    main(
        options.parse(
            __doc__, quick={"orders": [5, 10], "draws": 1_000, "tune": 500, "chains": 2},
            orders=[5, 10, 15, 20, 25, 30], chains=5, cores=1, draws=100_000, tune=10_000,
        )
    )  # fmt: skip
