"""What a method of sampling hands back: draws, times, memory, and summaries of its draws."""

from __future__ import annotations

import os
import resource
import time

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.jobs import Result, Stopwatch
from benchmarks.tall.memory import kilobytes
from benchmarks.tall.problems import Job, Problem

_TAILS = (0.05, 0.95)


@dataclass
class Outcome:
    """What a sampler hands back; draws are (chain, draw, ...) by variable."""

    draws: dict[str, np.ndarray]
    setup_s: float
    warmup_s: float
    sample_s: float
    rows_share: float
    status: str = "finished"
    extra: Result = field(default_factory=dict)
    #: Summaries of the parameters, of methods that do not draw.
    parameters: Result | None = None


def cpu_figures(setup_s: float, run: Stopwatch, warm: float, rest: float) -> Result:
    """CPU seconds of set-up, warm-up and sampling; the run's are shared out as its wall time is."""
    per_s = run.cpu_s / run.wall_s
    return {
        "setup_cpu_s": setup_s + per_s * max(0.0, run.wall_s - warm - rest),
        "warmup_cpu_s": per_s * min(warm, run.wall_s),
        "sample_cpu_s": per_s * min(rest, run.wall_s),
    }


# --- processes -----------------------------------------------------------------------------------


def pin(cores: int) -> None:
    """Keep this process and its children on the given number of cores, the idlest ones."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cores >= len(allowed):
        return
    import psutil

    load = psutil.cpu_percent(interval=0.2, percpu=True)
    os.sched_setaffinity(0, sorted(allowed, key=lambda cpu: load[cpu])[:cores])


def peak_mb() -> float:
    """Largest resident memory of this process or any of its children, in MB.

    Linux keeps in ru_maxrss what the parent had before ``exec``; VmHWM starts afresh.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status")
    if status.exists():
        own = kilobytes(status.read_text(), "VmHWM") or own
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * 1024 / 1e6


class Clock:
    """Callback of ``pm.sample``: times the phases of every chain and enforces the cap."""

    def __init__(self, cap: float):
        self.cap = cap
        self.begin: dict[int, float] = {}
        self.tuned: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.capped = False

    def __call__(self, trace, draw) -> None:
        """Note the time after a draw."""
        now = time.perf_counter()
        self.begin.setdefault(draw.chain, now)
        if draw.tuning:
            self.tuned[draw.chain] = now
        self.end[draw.chain] = now
        if now - min(self.begin.values()) > self.cap:
            self.capped = True
            raise KeyboardInterrupt

    def phases(self, lanes: int) -> tuple[float, float]:
        """Wall time of warm-up and of sampling, of chains that share the lanes evenly."""
        warm = sum(self.tuned.get(c, b) - b for c, b in self.begin.items())
        rest = sum(e - self.tuned.get(c, self.begin[c]) for c, e in self.end.items())
        return warm / lanes, rest / lanes

    @property
    def status(self) -> str:
        """Whether the cap ended the run."""
        return f"stopped at {self.cap:.0f} s" if self.capped else "finished"


def lanes(job: Job) -> int:
    """Chains that run side by side."""
    return max(1, min(job.cores, job.chains))


# --- summaries -----------------------------------------------------------------------------------


def describe(problem: Problem, draws: dict[str, np.ndarray]) -> Result:
    """Moments, Monte Carlo errors and effective sample sizes of every parameter."""
    from arviz_stats.base import array_stats

    keys = ("label", "mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
    out: Result = {key: [] for key in keys}
    for label, x in scalars(problem, draws):
        enough = x.shape[1] >= 4 and x.std() > 0.0
        out["label"].append(label)
        out["mean"].append(float(x.mean()) if x.size else np.nan)
        out["sd"].append(float(x.std(ddof=1)) if x.size > 1 else np.nan)
        for kind in ("mean", "sd"):
            out[f"mcse_{kind}"].append(
                float(array_stats.mcse(x, method=kind)) if enough else np.nan
            )
        for kind, settings in (("bulk", {}), ("tail", {"prob": _TAILS})):
            ess = array_stats.ess(x, method=kind, **settings) if enough else 0.0
            out[f"ess_{kind}"].append(float(ess))
        out["r_hat"].append(float(array_stats.rhat(halves(x))) if enough else np.nan)
    return out


def halves(x: np.ndarray) -> np.ndarray:
    """Draws (chain, draw) as two chains if there is only one, so that R-hat can compare them."""
    return x if x.shape[0] > 1 else x[:, : 2 * (x.shape[1] // 2)].reshape(2, -1)


def scalars(problem: Problem, draws: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Label and draws (chain, draw) of every scalar parameter."""
    out = []
    for name in problem.variables:
        values = np.asarray(draws[name], dtype=float)
        flat = flat_draws(values)
        labels = [name] if values.ndim == 2 else [f"{name}[{k}]" for k in range(flat.shape[2])]
        out += [(label, flat[:, :, k]) for k, label in enumerate(labels)]
    return out


def flat_draws(values: np.ndarray) -> np.ndarray:
    """Draws (chain, draw, ...) as (chain, draw, scalar), also if there are none."""
    return values.reshape(*values.shape[:2], int(np.prod(values.shape[2:])))


def posterior(problem: Problem, idata) -> dict[str, np.ndarray]:
    """Draws of the parameters out of a DataTree."""
    return {name: idata["posterior"][name].values for name in problem.variables}
