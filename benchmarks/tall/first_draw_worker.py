"""One first draw in a process of its own; `first_draw.py` starts it."""

from __future__ import annotations

import sys

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.jobs import Stopwatch, serve
from benchmarks.tall.first_draw_models import SHAPES

Step = Callable[[], Any]


# --- methods: what to do at the end of the model block ---------------------------------------------


def racing(model, seed: int) -> tuple[Step, Callable[[Any], Any]]:
    """`RacingMetropolis`: the step, and a draw with it."""
    import amc_pymc as amc

    make = amc.RacingMetropolis  # imported before the clock starts
    return lambda: make(model=model), lambda step: _sample(model, seed, step=step)


def interpreted(model, seed: int) -> tuple[Step, Callable[[Any], Any]]:
    """The same, PyMC's own functions interpreted by PyTensor."""
    import pytensor

    step, draw = racing(model, seed)

    def interpreted_draw(step):
        with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
            return draw(step)

    return step, interpreted_draw


def pymc_nuts(model, seed: int) -> tuple[Step, Callable[[Any], Any]]:
    """NUTS of PyMC; `pm.sample` makes the step."""
    return lambda: None, lambda _: _sample(model, seed, nuts_sampler="pymc", init="adapt_diag")


def nutpie(model, seed: int) -> tuple[Step, Callable[[Any], Any]]:
    """NUTS of nutpie: the compiled model, and a draw of it."""
    import nutpie

    def draw(compiled):
        return nutpie.sample(
            compiled, draws=1, tune=1, chains=1, cores=1, seed=seed, progress_bar=False
        )

    return lambda: nutpie.compile_pymc_model(model), draw


def _sample(model, seed: int, **settings):
    import pymc as pm

    return pm.sample(
        draws=1, tune=0, chains=1, cores=1, random_seed=seed, model=model, progressbar=False,
        quiet=True, compute_convergence_checks=False, **settings,
    )  # fmt: skip


METHODS = {
    "racing": racing, "racing-interpreted": interpreted, "pm.sample": pymc_nuts, "nutpie": nutpie,
}  # fmt: skip


# --- the measurement -----------------------------------------------------------------------------


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Step and first draw, in CPU and wall seconds."""
    model = SHAPES[job["problem"]](np.random.default_rng(job["seed"]), job["n_rows"])
    make, draw = METHODS[job["method"]](model, job["seed"])
    watch = Stopwatch()
    step = make()
    made = watch.read()
    draw(step)
    return {**job, "status": "finished", "step": made, **watch.read()}


def attempt(job: dict[str, Any]) -> dict[str, Any]:
    """The same, or why there are no figures."""
    try:
        return run(job)
    except Exception as error:
        reason = " ".join(str(error).split())
        return {**job, "status": f"failed: {type(error).__name__}: {reason}"[:300]}


if __name__ == "__main__":
    serve(sys.argv[1:], attempt)
