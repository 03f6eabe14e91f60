"""One estimate of the evidence: its figures, and what happens if it fails, warns or takes too long."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
import warnings

from collections.abc import Callable, Iterator
from logging.handlers import BufferingHandler

from benchmarks.harness.jobs import Result


def figures_of(tree) -> Result:
    """What a result of ``estimate_evidence`` says of the evidence and of its cost."""
    found = tree["evidence"]
    return {
        "log_evidence": float(found["log_evidence"]), "mcse": float(found["log_evidence_mcse"]),
        "lower": float(found["log_evidence_lower"]), "upper": float(found["log_evidence_upper"]),
        "cpu_s": float(found["cpu_seconds"]), "evaluations": int(found["n_likelihood"]),
        "gradients": int(found["n_gradient"]),
        "flags": [flag for flag in found.attrs["flags"].split("; ") if flag],
    }  # fmt: skip


def peer_figures(begin: float, log_evidence, mcse, evaluations: int, **others) -> Result:
    """The same of a method without gradients, bounds and flags that began at so many CPU seconds of the process."""
    return {
        "log_evidence": float(log_evidence), "mcse": float(mcse),
        "cpu_s": time.process_time() - begin, "setup_s": 0.0, "evaluations": int(evaluations),
        "gradients": 0, "flags": [], **others,
    }  # fmt: skip


class OutOfTime(BaseException):
    """A run has had its CPU seconds; no handler of errors is to catch this."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this thread after so many CPU seconds of the process."""

    def stop(signum, frame):
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def attempt(call: Callable[[], Result], cap: float) -> Result:
    """One run with its wall time, status and warnings; an error becomes a status."""
    logged, root = BufferingHandler(10_000), logging.getLogger()
    pymc, begin = logging.getLogger("pymc"), time.perf_counter()
    root.addHandler(logged)
    pymc.addHandler(logged)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with cpu_limit(cap):
                    row = {"status": "finished", **call()}
            except OutOfTime:
                row = {"status": f"stopped after {cap:g} CPU s"}
            except Exception as error:
                row = {"status": f"failed: {type(error).__name__}: {error}"[:300]}
    finally:
        root.removeHandler(logged)
        pymc.removeHandler(logged)
    # Floating-point and deprecation warnings say nothing about the estimate. estimate_evidence warns of
    # each of its flags, which are there already.
    said = [str(w.message) for w in caught if w.category is UserWarning]
    said += [r.getMessage() for r in logged.buffer if r.levelno >= logging.WARNING]
    others = [s for s in said if not s.startswith("Model evidence: ")]
    row["flags"] = [*row.get("flags", []), *dict.fromkeys(others)]
    row["wall_s"] = time.perf_counter() - begin
    return row
