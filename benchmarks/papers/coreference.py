"""Author coreference by annealed Gibbs sampling: factor evaluations, exact against racing.

    python -m benchmarks.papers.coreference            # 7 runs a method, some ten minutes on one core
    python -m benchmarks.papers.coreference --quick    # 2 runs on small data

Figure 3 of Chen & Ghahramani (2016): B-cubed F1 and factor evaluations, for
digits as mentions of ten entities and for clusters with power-law sizes up to 2,000; the saving of
evaluations near convergence; the decision error measured under the same Gumbel noise, beside delta.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.harness import options, results
from benchmarks.harness.intervals import clopper_pearson
from benchmarks.harness.jobs import Result, say
from benchmarks.harness.options import Option
from benchmarks.harness.tables import decision_error_cell, markdown, number
from models.coreference import Mentions, Trace, digit_mentions, power_law_mentions, run_coreference

_NAME = "coreference"
DELTA = 0.05
#: Promised error of a decision, by method.
METHODS: dict[str, float | None] = {"exact": None, "racing": DELTA}
#: Sweeps at the end of a run that count as "near convergence".
LAST = 5
#: Temperature of the first sweep.
HOTTEST = 10.0


def data_sets(quick: bool) -> dict[str, tuple[Mentions, float]]:
    """Mentions, and the share of decisions to audit."""
    small = {"n_entities": 80, "n_blocks": 5, "largest": 200} if quick else {}
    return {
        "digits": (digit_mentions(), 0.2),
        "power law": (power_law_mentions(n_features=16, **small), 0.03),
    }


def main(o: argparse.Namespace) -> None:
    """Run everything, print and save the tables."""
    rows: list[Result] = []
    parts = ["# Author coreference: annealed Gibbs sampling from singletons"]
    for name, (mentions, audit_share) in data_sets(o.quick).items():
        traces = {m: run_all(mentions, audit_share, race, o) for m, race in METHODS.items()}
        seconds = {m: time_of(mentions, race, o) for m, race in METHODS.items()}
        found = [summary(name, m, traces[m], traces["exact"], seconds[m]) for m in METHODS]
        rows += found
        table = markdown(HEADERS, map(line, found))
        parts += [heading(name, mentions, o), table]
    text = "\n\n".join(parts)
    print(text)
    results.save(o, _NAME, rows, text)


def run(mentions, seed: int, audit_share: float, race: float | None, o) -> Trace:
    """One run."""
    return run_coreference(
        mentions, race=race, seed=seed, n_sweeps=o.sweeps, hottest=HOTTEST,
        audit_share=audit_share,
    )  # fmt: skip


def run_all(mentions, audit_share, race, o) -> list[Trace]:
    """All runs of one method; run r of every method has the same seed."""
    out = []
    for r in range(o.runs):
        out.append(run(mentions, o.seed + r, audit_share, race, o))
        say(f"... {race} run {r}")
    return out


def time_of(mentions, race, o) -> float:
    """Seconds of a sweep near convergence, without audits."""
    return float(np.median(np.diff(run(mentions, o.seed, 0.0, race, o).seconds)[-LAST:]))


def per_sweep(traces: list[Trace]) -> np.ndarray:
    """Factor evaluations per sweep near convergence, one mean per run."""
    return np.array([np.mean(np.diff(t.evaluations)[-LAST:]) for t in traces])


def summary(name, method, traces, exact, seconds) -> Result:
    """Figures of one method on one data set."""
    f1 = np.array([t.f1[-1] for t in traces])
    of_all, of_exact = (np.mean([t.evaluations[-1] for t in ts]) for ts in (traces, exact))
    audited = int(sum(t.audited[-1] for t in traces))
    wrong = int(sum(t.wrong[-1] for t in traces))
    low, high = clopper_pearson(wrong, audited)
    return {
        "data": name,
        "method": method,
        "f1": float(f1.mean()),
        "f1_se": float(f1.std(ddof=1) / np.sqrt(f1.size)),
        "evaluations": float(of_all),
        "saving_overall": float(of_exact / of_all),
        "saving_near_convergence": float(per_sweep(exact).mean() / per_sweep(traces).mean()),
        "seconds_per_sweep": seconds,
        "audited": audited,
        "wrong": wrong,
        "error": wrong / audited if audited else float("nan"),
        "error_low": low,
        "error_high": high,
        "delta": DELTA,
    }


def heading(name: str, mentions: Mentions, o) -> str:
    """What is clustered."""
    sizes = np.unique(mentions.entity, return_counts=True)[1]
    blocks = np.unique(mentions.block).size
    return (
        f"## {name}\n\n{mentions.entity.size:,} mentions of {sizes.size} entities (sizes "
        f"{sizes.min()} to {sizes.max()}), {blocks} block{'s' if blocks > 1 else ''}, "
        f"{mentions.features.shape[1]} features; {o.runs} runs of {o.sweeps} sweeps, "
        f"temperature {HOTTEST:g} to 0.05"
    )


HEADERS = (
    "method", "final F1", "evaluations",
    "fewer overall", f"fewer in the last {LAST} sweeps", "s per sweep there",
    "decision error [95 % CI]",
)  # fmt: skip


def line(r: Result) -> list[str]:
    """One method."""
    return [
        r["method"], f"{r['f1']:.4f} ± {r['f1_se']:.4f}",
        f"{r['evaluations']:.3g}",
        f"{r['saving_overall']:.1f}x", f"{r['saving_near_convergence']:.1f}x",
        number(r["seconds_per_sweep"]), decision_error_cell(r) if r["audited"] else "-",
    ]  # fmt: skip


if __name__ == "__main__":
    main(
        options.parse(
            __doc__, quick={"runs": 2, "sweeps": 8}, runs=Option(7, "of each method, at least 2"),
            sweeps=20,
        )
    )  # fmt: skip
