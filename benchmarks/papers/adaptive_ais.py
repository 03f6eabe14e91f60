"""Adaptive annealed importance sampling: section 6.3, figure 3 and appendix G of Neufeld et al. (2014).

    python -m benchmarks.papers.adaptive_ais --data pima.csv            # some 15 CPU minutes
    python -m benchmarks.papers.adaptive_ais --data pima.csv --quick

Without ``--data`` scikit-learn downloads the Pima data. Three estimators of the evidence of a Bayesian
logistic regression on the first T = 5, 10 and 50 rows anneal from the prior N(0, 0.05 I) with 400,
2,000 and 8,000 steps, temperatures u^4 and one sweep of slice sampling at each; which of them to draw
from is left to bandits. The paper does not say how covariates were scaled: "standardised" is
``models.logistic_regression.neufeld``, "raw" leaves them as they are. It gives no width of slices
either, here 2 prior standard deviations at all temperatures.

Particles are annealed together (``amc_pymc.evidence.annealing.anneal``, ``amc_pymc.evidence.mcmc.Slice``) along a path
compiled by Numba, which takes 0.1 to 0.6 microseconds per point (5 to 50 rows); the densities that
``amc_pymc.reading`` compiles from the PyMC model take 0.3 to 2.8. Evaluations of the likelihood are
counted for each draw. Its CPU seconds are its part, by evaluations, of those of its batch of 300: drawn
one by one every draw would pay NumPy's overhead, some hundred times the work.

A bank of independent draws with their costs is made once for each arm and T; replays of the
policies draw from it. They draw with replacement (but for an arm's first 30 draws in a run), and weights
are divided by the mean of their bank. So the arms of a replay are unbiased with variances and costs known
exactly, and draws are independent; without replacement a run that uses half of a bank would have half
the mean squared error that it should. What replays say depends on the bank's variances, whose intervals
are in the table of arms.

As in the paper a decision makes two draws, with the payoff -(D + D') (X - X')^2 / 4 and the range of the
arm's payoffs known (appendix B there); LCB is told each draw. At time t only what is complete counts.
All policies of a run get the same draws of an arm in the same order. Times are in mean draws of the
dearest arm. Losses are mean squared errors relative to the squared evidence, and regret is t^2 times
the loss beyond that of the arm that is best at t. "By pulls" is what the error would be if numbers of
draws and values were independent: sum_k n_k V_k / n^2, and 1 / sum_k n_k / V_k with inverse-variance
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.harness import options
from benchmarks.harness.options import Option
from benchmarks.harness.statements import publish
from benchmarks.papers.adaptive_ais_bank import COVARIATES, make_banks
from benchmarks.papers.adaptive_ais_figure import figure
from benchmarks.papers.adaptive_ais_kernels import kernels

QUICK = {
    "rows": [5, 50], "steps": [10, 50, 200], "bank": [400, 200, 100], "raw_bank": [200, 100, 100],
    "runs": 50, "budget": 25.0, "kernel_draws": 100,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Draw, replay, print, save."""
    o = options.parse(
        __doc__, argv, QUICK,
        data=Option(None, "CSV file of the Pima data; downloaded if not given"),
        rows=Option([5, 10, 50], "T"), steps=Option([400, 2_000, 8_000], "of the arms"),
        bank=Option([1_500, 500, 300], "draws of each"), raw_bank=[900, 300, 300],
        runs=Option(200, "replays of each policy"),
        budget=Option(200.0, "in draws of the dearest arm"),
        kernel_draws=Option(800, "of appendix G, at most"),
    )  # fmt: skip
    banks = make_banks(o)
    makers = {f"figure, {c}": partial(figure, o, banks, c) for c in COVARIATES}
    publish("adaptive_ais", o, makers | {"kernels": partial(kernels, o, banks)})


if __name__ == "__main__":
    main()
