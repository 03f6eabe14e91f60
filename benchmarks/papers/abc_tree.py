"""Tree bandits for likelihood-free inference: figures, table and statements of O'Hagan, Kim & Rockova.

    python -m benchmarks.papers.abc_tree                        # some 12 CPU minutes
    python -m benchmarks.papers.abc_tree --quick                # one
    python -m benchmarks.papers.abc_tree --parts toy modes      # some of it

*Tree bandits for generative Bayes*, figures 2-20 and table 1, as far as the text defines them. Parts, in the
order of the paper:

toy         figures 3 and 15: utilities and Thompson sampling on a hundred points
theorem     theorem 3.1: how fast regret falls
weights     section 3.1: are weighted acceptances draws of the posterior?
grid        figure 4: regular bins
proposals   figures 2 and 5: partitions by CART, BART (if installed) and halving
arms        figure 6: the best of fifty points
modes       figures 7 and 16: MAP-Tree on example 3
digits      figures 8, 9, 13, 17 and 19: behind a mask
leaves      figure 14: ten leaves and a thousand
map_digit   figures 10 and 20: the digit at the mode
heston      figure 11
lotka       figure 12
dimensions  appendix C.1: SMC-ABC and ABC-Tree in more dimensions
costs       table 1

"Printed" is the paper's algorithm with its settings, "here" that of this package with its defaults; see
``abc_tree_methods.py``. What the paper leaves open (data, true parameters, first tolerances, images) is
said there and in ``models/``. References from rejection are of fewer draws than its 1e8.
Intervals are 95 %, by Student's distribution where runs are compared pairwise.
"""

from __future__ import annotations

import argparse

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.harness import options
from benchmarks.harness.options import Option
from benchmarks.harness.statements import Part, publish
from benchmarks.papers.abc_tree_arms import arms
from benchmarks.papers.abc_tree_digits import digits, leaves
from benchmarks.papers.abc_tree_modes import digit, mixture
from benchmarks.papers.abc_tree_posteriors import (
    dimensions,
    heston_part,
    lotka_part,
    proposals,
    weights,
)
from benchmarks.papers.abc_tree_toys import costs, grid, theorem, toy

PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "toy": toy, "theorem": theorem, "weights": weights, "grid": grid, "proposals": proposals,
    "arms": arms, "modes": mixture, "digits": digits, "leaves": leaves, "map_digit": digit,
    "heston": heston_part, "lotka": lotka_part, "dimensions": dimensions, "costs": costs,
}  # fmt: skip
#: Numbers of a full run, and of one that only shows that it works: simulations or repetitions.
NUMBERS = {
    "toy_steps": (10_000, 1_500),  # simulations of a game on a hundred points
    "toy_runs": (30, 3),
    "theorem_steps": (200_000, 60_000),  # largest number of simulations
    "theorem_runs": (20, 2),
    "weight_steps": (6_000, 4_000),
    "weight_runs": (40, 3),
    "grid_steps": (10_000, 2_000),
    "grid_runs": (100, 3),
    "example_steps": (30_000, 6_000),  # simulations of figure 5
    "example_quota": (500, 200),  # acceptances before the tolerance falls, figure 5
    "example_runs": (10, 2),
    "arm_steps": (5_000, 1_000),
    "arm_runs": (200, 10),
    "mode_steps": (20_000, 4_000),  # simulations of a search, figure 7
    "mode_runs": (100, 3),
    "budget": (100_000, 6_000),  # simulations of figures 9, 11 and 13
    "digit_runs": (8, 2),
    "digit_reference": (4_000_000, 100_000),  # prior draws of the reference
    "leaf_steps": (30_000, 6_000),
    "leaf_reference": (500_000, 50_000),
    "map_steps": (10_000, 4_000),  # simulations of a search, figure 10
    "map_runs": (30, 2),
    "map_reference": (2_000_000, 100_000),
    "heston_runs": (5, 2),
    "heston_reference": (600_000, 20_000),
    "lotka_steps": (20_000, 6_000),  # simulations of figure 12, dear where populations live on
    "lotka_runs": (8, 2),
    "lotka_reference": (2_000_000, 50_000),
    "dimension_steps": (30_000, 4_000),  # simulations of appendix C.1
    "dimension_runs": (8, 2),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    chosen = options.parse(__doc__, argv, parts=Option(list(PARTS), choices=PARTS))
    numbers = {name: small if chosen.quick else full for name, (full, small) in NUMBERS.items()}
    of_parts = argparse.Namespace(seed=chosen.seed, **numbers)
    makers = {name: partial(PARTS[name], of_parts) for name in chosen.parts}
    publish("abc_tree_paper", chosen, makers)


if __name__ == "__main__":
    main()
