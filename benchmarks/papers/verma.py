"""Figures 1-4 of Verma & Hanawal (2021); see ``bandits.py``."""

from __future__ import annotations

import itertools
import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike
from scipy.stats import t as student

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import UCB1, UCBV
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV
from benchmarks.harness.intervals import gap, interval, mean_and_half
from benchmarks.harness.statements import Part, Statement, Statements, times_up_to
from benchmarks.harness.tables import markdown, number
from benchmarks.papers.bandit_runs import EUCBV, run
from models.ucb_cv_instances import VARIANCES_OF_5, Instance, make_instance

# --- Verma & Hanawal -----------------------------------------------------------------------------


def squared_quantile(n: ArrayLike, total: ArrayLike, q: int) -> np.ndarray:
    """V^2 of n pulls out of T with q controls: squared 1 - 1 / T^2 quantile, n - q - 1 df."""
    return student.isf(np.asarray(total, float) ** -2.0, np.asarray(n) - q - 1) ** 2


def figure_cv1(options) -> Part:
    """Properties of V^2, remarks 2 and 3."""
    lines, worst, first = [], (0.0, 0, 0.0), math.inf
    shown = (1, 2, 5, 10, 20, 50)
    for q in (*range(1, 200), *range(200, 2001, 50)):
        # every T of the first hundred, then on a grid
        start = math.ceil(q + max(32, 0.7 * q))
        grid = np.concatenate([np.arange(start, start + 100), np.geomspace(start + 100, 1e15, 300)])
        ratio = squared_quantile(grid, grid, q) / np.log(grid)
        usual = grid <= 1e9
        k = int(np.argmax(ratio * usual))
        worst = max(worst, (float(ratio[k]), q, float(grid[k])))
        first = min(first, float(np.min(grid[(ratio > 3.726) & ~usual], initial=math.inf)))
        if q in shown:
            lines.append([str(q), f"{ratio[k]:.4f}", f"{grid[k]:.4g}"])
    increasing = bool(
        np.all(np.diff([squared_quantile(2000.0, 2000.0, q) for q in range(1, 500)]) > 0.0)
    )
    # remark 3: q <= 20 and N > 50
    totals = np.geomspace(51, 1e6, 200)
    pulls = np.arange(51, 2000)
    v_ratio = np.array(
        [np.sqrt(squared_quantile(51.0, t, 20) / squared_quantile(t, t, 20)) for t in totals]
    )
    factor = max((p - 2) / (p - 20 - 2) for p in pulls)
    beyond = totals[v_ratio > 1.5]
    falls = np.sqrt(squared_quantile(pulls, 1e4, 20) / squared_quantile(1e4, 1e4, 20))
    text = "## Figure cv1: V^2\n\n" + markdown(
        ["q", "largest V^2 / log T up to T = 1e9", "at T"], lines
    )
    second, third = Statements("V&H remark 2"), Statements("V&H remark 3")
    second("V^2 increases in q", increasing, "T = 2,000, q = 1 to 500, every step")
    second(
        "V^2 <= 3.726 log T if T >= q + max(32, 0.7 q); T up to 1e9",
        bool(worst[0] <= 3.726),
        f"largest V^2 / log T {worst[0]:.4f}, at q = {worst[1]}, T = {worst[2]:.4g}; q up to 2,000",
    )
    second(
        "the same for all T above 1e9",
        first == math.inf,
        f"no longer from T = {first:.2g} on" if first < math.inf else "T up to 1e15",
    )
    third(
        "(N - 2) / (N - q - 2) <= 1.72 for q <= 20, N > 50",
        bool(factor <= 1.72),
        f"at most {factor:.4f}",
    )
    third(
        "V_{T,N,q} / V_{T,T,q} <= 1.5 for q <= 20, N > 50",
        beyond.size == 0,
        f"q = 20, N = 51: {v_ratio[np.searchsorted(totals, 1e4)]:.3f} at T = 1e4, "
        f"{v_ratio[-1]:.3f} at T = 1e6",
    )
    third(
        "that ratio falls to 1 as N grows",
        bool(np.all(np.diff(falls) < 0.0) and falls[-1] < 1.01),
        f"q = 20, T = 1e4: {falls[0]:.3f} at N = 51, {falls[-1]:.4f} at N = 1,999",
    )
    return Part(text, second + third)


class Draws(NamedTuple):
    """Rewards and controls (R, K, n) of an instance."""

    instance: Instance
    rewards: np.ndarray
    controls: np.ndarray


def draw(instance: Instance, n: int, runs: int, rng) -> Draws:
    """Runs of an instance."""
    pairs = [instance.sample(n, rng) for _ in range(runs)]
    return Draws(instance, np.array([x for x, _ in pairs]), np.array([w for _, w in pairs]))


def regrets(policy: Policy, draws: Draws, checkpoints, rng) -> np.ndarray:
    """Cumulative regret (R, C)."""
    counts = run(policy, draws.rewards, checkpoints, rng, draws.controls)
    return counts @ draws.instance.gaps


def rivals(n_arms: int, n: int, width: float = 1.0) -> dict[str, Policy]:
    """Policies without controls, their intervals for rewards on [0, width]."""
    rewards = (0.0, width)
    return {
        "UCB1": UCB1(n_arms, rewards=rewards), "UCB-V": UCBV(n_arms, rewards=rewards),
        "EUCBV": EUCBV(n_arms, horizon=n, rewards=rewards),
        "TS": ThompsonSampling(n_arms, rewards=rewards),
    }  # fmt: skip


def controlled(instance: Instance, error: ArrayLike = 0.0, **settings) -> UCBCV:
    """UCB-CV told the controls' means plus an error."""
    means = instance.control_means[:, None] + np.asarray(error)
    return UCBCV(instance.n_arms, control_means=means, **settings)


def regret_table(title: str, curves) -> str:
    """Regret at the end of all curves (R, C), by case and policy."""
    lines = [
        [case, name, interval(x[:, -1], 4), number(float(x[:, -1].max()), 4)]
        for case, found in curves.items()
        for name, x in found.items()
    ]
    heads = ["case", "policy", "regret, 95 %", "largest"]
    return f"## {title}\n\n" + markdown(heads, lines)


def figure_cv2(options) -> Part:
    """Regret of all policies on instances 1 and 2, and of UCB-CV against the correlation."""
    n, runs = options.steps or 10_000, options.runs or 100
    rng = np.random.default_rng([options.seed, 4])
    checkpoints = times_up_to(n, 60, 100)
    curves, ends, stuck = {}, {}, []
    for k in (1, 2):
        draws = draw(make_instance(k), n, runs, rng)
        policies = {"UCB-CV": controlled(draws.instance), **rivals(10, n)}
        found = {k: regrets(p, draws, checkpoints, rng) for k, p in policies.items()}
        case = f"instance {k}"
        curves[case] = found
        ends[case] = {k: x[:, -1] for k, x in found.items()}
        # the last half of the pulls on other arms than the best
        half = int(np.searchsorted(checkpoints, n / 2))
        late = found["EUCBV"][:, -1] - found["EUCBV"][:, half]
        least = draws.instance.gaps[1] * (checkpoints[-1] - checkpoints[half])
        stuck.append(float(np.mean(late > 0.9 * least)))
    by_rho = curves["instance 5, UCB-CV"] = {}
    for v in VARIANCES_OF_5:
        draws = draw(make_instance(5, var_v=v), n, runs, rng)
        rho = f"rho = {float(draws.instance.correlations[0]):.3f}"
        by_rho[rho] = regrets(controlled(draws.instance), draws, checkpoints, rng)
    text = regret_table(f"Figure cv2: regret at T = {n:,}, {runs} runs", curves)
    return Part(text, statements_cv2(ends, stuck, by_rho))


def statements_cv2(ends, stuck, by_rho) -> list[Statement]:
    """First two paragraphs of the results."""
    out = Statements("V&H 6")
    for case, x in ends.items():
        others = [k for k in x if k != "UCB-CV"]
        out(
            f"UCB-CV outperforms all on {case}",
            all(gap(x["UCB-CV"], x[k]).below for k in others),
            "UCB-CV less others: " + ", ".join(f"{k} {gap(x['UCB-CV'], x[k])}" for k in others),
        )
    out(
        "EUCBV is closest to UCB-CV (TS aside)",
        all(
            min(("UCB1", "UCB-V", "EUCBV"), key=lambda k: abs(x[k].mean() - x["UCB-CV"].mean()))
            == "EUCBV"
            for x in ends.values()
        ),
        "; ".join(
            f"{case}: UCB-CV {interval(x['UCB-CV'])}, EUCBV {interval(x['EUCBV'])}, "
            f"UCB-V {interval(x['UCB-V'])}"
            for case, x in ends.items()
        ),
    )
    out(
        "EUCBV can stick with a suboptimal arm",
        max(stuck) > 0.0,
        "runs whose second half is spent on other arms: "
        + ", ".join(f"{case} {s:.0%}" for case, s in zip(ends, stuck, strict=True)),
    )
    out(
        "TS has a large regret for normal rewards (more than UCB1's)",
        all(gap(x["UCB1"], x["TS"]).below for x in ends.values()),
        "TS less UCB1: "
        + "; ".join(f"{case} {gap(x['TS'], x['UCB1'])}" for case, x in ends.items()),
    )
    finals = [x[:, -1] for x in by_rho.values()]
    steps = [mean_and_half(b)[0] - mean_and_half(a)[0] for a, b in itertools.pairwise(finals)]  # fmt: skip
    (first, h1), (last, h2) = mean_and_half(finals[0]), mean_and_half(finals[-1])
    out(
        "the regret of UCB-CV falls as the correlation grows (instance 5)",
        bool(all(s > 0.0 for s in steps) and last - first > math.hypot(h1, h2)),
        ", ".join(f"{k}: {interval(x[:, -1])}" for k, x in by_rho.items()),
    )
    return out


def figure_cv3(options) -> Part:
    """Regression, jackknife, splitting and batching."""
    n, runs = options.steps or 5_000, options.runs or 100
    rng = np.random.default_rng([options.seed, 5])
    checkpoints = times_up_to(n, 60, 100)
    cases = {
        "instance 2 (normal)": make_instance(2), "instance 3 (gamma)": make_instance(3),
        "instance 4 (log-normal)": make_instance(4),
    }  # fmt: skip
    curves = {}
    for case, instance in cases.items():
        draws = draw(instance, n, runs, rng)
        curves[case] = {
            name: regrets(controlled(instance, estimator=key), draws, checkpoints, rng)
            for name, key in (
                ("UCB-CV", "regression"),
                ("jackknife", "jackknife"),
                ("splitting", "splitting"),
                ("batching", "batching"),
            )
        }
    ends = {case: {k: x[:, -1] for k, x in of.items()} for case, of in curves.items()}
    out = Statements("V&H 6")
    printed = list(cases)
    out(
        "batching is worse than the other three on all instances",
        all(
            gap(ends[c][k], ends[c]["batching"]).below
            for c in printed
            for k in ("UCB-CV", "jackknife", "splitting")
        ),
        "batching less UCB-CV: "
        + "; ".join(f"{c} {gap(ends[c]['batching'], ends[c]['UCB-CV'])}" for c in cases),
    )
    gamma = ends[printed[1]]
    out(
        "jackknife and splitting do better than UCB-CV with heavier tails (instance 3)",
        all(gap(gamma[k], gamma["UCB-CV"]).below for k in ("jackknife", "splitting")),
        f"less UCB-CV: jackknife {gap(gamma['jackknife'], gamma['UCB-CV'])}, "
        f"splitting {gap(gamma['splitting'], gamma['UCB-CV'])}",
    )
    for case in (printed[0], printed[2]):
        x = ends[case]
        out(
            f"UCB-CV does better than jackknife and splitting on {case}",
            all(gap(x["UCB-CV"], x[k]).below for k in ("jackknife", "splitting")),
            f"UCB-CV less jackknife {gap(x['UCB-CV'], x['jackknife'])}, "
            f"less splitting {gap(x['UCB-CV'], x['splitting'])}",
        )
    text = regret_table(f"Figure cv3: regret at T = {n:,}, {runs} runs", curves)
    return Part(text, out)


#: Errors of the controls' means, up to some standard deviations of a control.
ERRORS = {
    1: (0.0, 0.02, 0.1, 0.3, 1.0),
    2: (0.0, 0.02, 0.1, 0.3, 1.0),
    5: (0.0, 0.2, 1.0, 3.0, 5.0),
}
#: Width of rewards by which the paper widens intervals, and one that holds nearly all rewards.
WIDTHS = {1: 1.0, 2: 1.0, 5: 6.0}
WIDE = 16.0


def figure_cv4(options) -> Part:
    """An error in the controls' means."""
    n, runs = options.steps or 10_000, options.runs or 100
    rng = np.random.default_rng([options.seed, 6])
    checkpoints = times_up_to(n, 60, 100)
    curves = {}
    for which, errors in ERRORS.items():
        draws = draw(make_instance(which), n, runs, rng)
        found = {
            f"error {e:g}": regrets(controlled(draws.instance, e), draws, checkpoints, rng)
            for e in errors
        }
        for name, policy in rivals(10, n, WIDTHS[which]).items():
            found[name] = regrets(policy, draws, checkpoints, rng)
        if which == 5:
            on_wide = ThompsonSampling(10, rewards=(0.0, WIDE))
            found[f"TS on [0, {WIDE:g}]"] = regrets(on_wide, draws, checkpoints, rng)
        curves[f"instance {which}"] = found
    ends = {case: {k: x[:, -1] for k, x in of.items()} for case, of in curves.items()}
    out = Statements("V&H 6")
    grows, parts, worse, compared = [], [], [], []
    for which, errors in ERRORS.items():
        x = ends[f"instance {which}"]
        chain = [x[f"error {e:g}"] for e in errors]
        grows.append(
            not any(gap(b, a).below for a, b in itertools.pairwise(chain))
            and gap(chain[0], chain[-1]).below
        )
        parts.append(
            f"instance {which}: "
            + ", ".join(f"{e:g}: {interval(c)}" for e, c in zip(errors, chain, strict=True))
        )
        worse.append(gap(x["UCB1"], chain[-1]).below)
        compared.append(
            f"instance {which}, less UCB1: error {errors[-1]:g} "
            f"{gap(chain[-1], x['UCB1'])}, {errors[-2]:g} {gap(chain[-2], x['UCB1'])}"
        )
    out(
        "the regret of UCB-CV increases with the error of the controls' means",
        all(grows),
        "; ".join(parts),
    )
    out(
        "for large errors UCB-CV does worse than existing algorithms (UCB1; EUCBV is ahead anyway)",
        all(worse),
        "; ".join(compared),
    )
    half = int(np.searchsorted(checkpoints, n / 2))
    ts = curves["instance 5"]["TS"]
    linear = ts[:, -1] / ts[:, half] / (checkpoints[-1] / checkpoints[half])
    wide = curves["instance 5"][f"TS on [0, {WIDE:g}]"]
    out(
        "TS has almost linear regret on instance 5",
        bool(mean_and_half(linear)[0] > 0.95),
        f"growth over the last half, as a share of linear growth: {interval(linear)}; regret "
        f"{interval(ts[:, -1])}, with rewards scaled from [0, {WIDE:g}] {interval(wide[:, -1])}",
    )
    text = regret_table(f"Figure cv4: regret at T = {n:,}, {runs} runs", curves)
    return Part(text, out)
