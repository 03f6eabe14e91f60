"""Runs of a combination in one process."""

from amc_pymc.bandits.arms import draw, join_samples


def run_here(run, rng, cost="count"):
    """Run all rounds with one generator for decisions and draws."""
    while (decided := run.next_round(rng)) is not None:
        pulls = zip(run.arms, decided.counts, strict=True)
        run.record(
            decided,
            [draw(arm, int(n), rng, cost) if n else join_samples([]) for arm, n in pulls],
        )
    return run
