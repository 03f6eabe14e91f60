"""The progress bar of the preparation ends when it is done, whatever was skipped."""

import time

from amc_pymc.engine.jit import njit, reports_of_compiling
from amc_pymc.steps import preparation
from amc_pymc.steps.preparation import COMPILING, Stopwatch


class Bar:
    done = 0

    def update(self, *, description):
        self.text = description

    def advance(self, n=1):
        self.done += n


def test_compiling_is_a_task_of_its_own():
    """It interrupts another one, and the bar says what is compiled."""
    bar, watch = Bar(), Stopwatch()
    stages, shown = preparation.Stages(bar, watch), []
    bar.update = lambda *, description: shown.append(description)

    @njit
    def double(x):
        return 2.0 * x

    with reports_of_compiling(stages.compiling):
        begin = time.perf_counter()
        double(1.0)
        compiled = time.perf_counter() - begin
        time.sleep(0.02)
        double(1.0)
    stages.end("Prepared")
    first, *_, last = shown[:-1]
    assert first == "Compiling double, once per installation" and not last.startswith("Compiling")
    assert list(watch.seconds) == ["model", COMPILING]
    assert watch.seconds["model"] > 0.015 and 0.0 < watch.seconds[COMPILING] <= compiled
