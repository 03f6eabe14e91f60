"""How many functions of the package a sampler runs, and in how many files.

    python -m benchmarks.tall.functions

Counts by `sys.setprofile` what `pm.sample(step=amc.RacingMetropolis())` runs on ten logistic coefficients.
"""

from __future__ import annotations

import collections
import sys

from types import CodeType, FrameType
from typing import Any

import numpy as np
import pymc as pm

import amc_pymc as amc

_PACKAGE = amc.__file__.removesuffix("__init__.py")


def count(n_rows: int = 2_000, draws: int = 100) -> set[CodeType]:
    """Code of the functions of the package that run, without those of modules and classes."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_rows, 10))
    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            seen.add(code)

    with pm.Model():
        beta = pm.Normal("beta", shape=10)
        pm.Bernoulli("y", logit_p=features @ beta, observed=rng.integers(0, 2, n_rows))
        step = amc.RacingMetropolis  # imported before
        sys.setprofile(profile)
        try:
            pm.sample(
                draws,
                tune=draws,
                chains=1,
                step=step(progressbar=False),
                random_seed=1,
                progressbar=False,
            )
        finally:
            sys.setprofile(None)
    return {code for code in seen if not code.co_name.startswith("<")}


def main() -> None:
    """Print the counts, and the files with most functions."""
    found = count()
    files = collections.Counter(code.co_filename.removeprefix(_PACKAGE) for code in found)
    print(f"{len(found)} functions in {len(files)} files")
    for name, number in files.most_common():
        print(f"{number:4d} {name}")


if __name__ == "__main__":
    main()
