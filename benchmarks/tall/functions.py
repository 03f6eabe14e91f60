"""Functions of the package that building `RacingMetropolis()` for ten logistic coefficients runs, by folder.

    python -m benchmarks.tall.functions

In a new process, with kernels compiled before. Nested functions count, lambdas and generator expressions do not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.harness import results
from benchmarks.harness.options import parse
from benchmarks.harness.tables import markdown
from benchmarks.tall.exact import data_of, model_of

HEADERS = ("folder", "files", "functions")
_UNNAMED = ("<lambda>", "<genexpr>", "<module>")


def functions_of_a_step(seed: int) -> list[str]:
    """The file of each function that runs, relative to the package."""
    import amc_pymc as amc

    model = model_of("logistic", data_of("logistic", 10, 5_000, seed))
    build = amc.RacingMetropolis  # which is imported on first use
    root, found = Path(amc.__file__).parent, set()

    def seen(frame, event, _) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(seen)
    try:
        build(model=model, progressbar=False)
    finally:
        sys.setprofile(None)
    paths = [Path(code.co_filename) for code in found if code.co_name not in _UNNAMED]
    return [path.relative_to(root).as_posix() for path in paths if root in path.parents]


def main(options: argparse.Namespace) -> None:
    """Count, print and save."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        _, found = (pool.submit(functions_of_a_step, options.seed).result() for _ in range(2))
    functions = Counter(path.split("/")[0] for path in found)
    files = Counter(path.split("/")[0] for path in set(found))
    rows = [{"folder": f, "files": files[f], "functions": n} for f, n in functions.most_common()]
    rows.append({"folder": "all", "files": files.total(), "functions": functions.total()})
    text = markdown(HEADERS, [[str(row[key]) for key in HEADERS] for row in rows])
    print(text)
    results.save(options, "functions", rows, text)


if __name__ == "__main__":
    main(parse(__doc__))
