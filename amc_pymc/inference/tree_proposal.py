"""Options of the proposals of ABC-Tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from amc_pymc.abc_tree.cart import Cart
from amc_pymc.abc_tree.dyadic import Dyadic
from amc_pymc.abc_tree.learning import Learner, Partitioner, check_partitioner
from amc_pymc.arguments import boolean, positive_int, share_or_none

__all__ = ["TreeProposal"]

PartitionName = Literal["forest", "cart", "dyadic", "bart"]
Utility = Literal["ess", "efficiency", "posterior", "kl"]
Rates = Literal["mean", "draw"]

#: Trees of a forest: random cuts keep weights even, the best ones find narrow posteriors with few
#: simulations; with many they cost more than they give.
_RANDOM, _BEST = Cart(random_cuts=True), Cart(random_beyond=10_000)
_FOREST = (_RANDOM, _RANDOM, _BEST, _BEST)
#: Partitions by BART that are mixed.
_BART_DRAWS = 4


@dataclass(frozen=True, kw_only=True)
class TreeProposal:
    r"""How :func:`sample_abc_tree` learns where to simulate next.

    The defaults are good for most problems. Whatever is chosen, weights are exact: it matters for how many effective
    draws a budget gives, not for what they are draws of.

    Parameters
    ----------
    partition : {"forest", "cart", "dyadic", "bart"} or callable, default "forest"
        Boxes: two extremely randomised regression trees and two CART trees (at most 1000 leaves each) on
        parts of the simulations, all four randomised once there are many; one CART tree; dyadic halving;
        draws of Bayesian additive trees (extra ``bart``); or a
        :class:`amc_pymc.abc_tree.Partitioner` of your own.
    local : bool, default True
        Draw from mixtures of Student t kernels, too, which follow posteriors that are narrow in oblique directions. Their
        share of each batch is learnt from the simulations before it; boxes and the prior keep a tenth at least. Only for
        ``utility="ess"``.
    utility : {"ess", "efficiency", "posterior", "kl"}, default "ess"
        What proposals maximise given acceptance rates. "ess", effective draws per simulation:
        :math:`q_k \propto \pi_k \mu_k^\gamma`, with :math:`\gamma` between 1/2, best for known rates, and 1 by prediction. The
        others are :math:`\omega^2`, :math:`\omega^1` and :math:`\omega^3` of the paper; see
        :func:`amc_pymc.abc_tree.best_proposal`.
    prior_share : float, default 0.05
        Of each batch drawn from the prior: no weight exceeds 1 / prior_share times the gain.
    rates : {"mean", "draw"}, default "mean"
        Means of acceptance rates, or draws from their Beta distributions.
    rotate : bool, default True
        Cut every other tree of several along principal axes of the accepted simulations, for posteriors that
        are correlated.
    honest : bool, default False
        Estimate rates from other simulations than those that cuts are chosen by.
    window : int, optional
        Learn from the last rounds only.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used; the error names it and its value.

    References
    ----------
    O'Hagan, Kim & Rockova, Tree bandits for generative Bayes.
    Alsing, Wandelt & Feeney (2018), Optimal proposals for approximate Bayesian computation, arXiv:1808.06040.

    Examples
    --------
    >>> import amc_pymc as amc
    >>> amc.TreeProposal(partition="cart", prior_share=0.1).local
    True
    >>> amc.TreeProposal(prior_share=2.0)
    Traceback (most recent call last):
        ...
    ValueError: prior_share must be between 0 and 1, got 2.0.
    """

    partition: PartitionName | Partitioner = "forest"
    local: bool = True
    utility: Utility = "ess"
    prior_share: float = 0.05
    rates: Rates = "mean"
    rotate: bool = True
    honest: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.partition, str) or not callable(self.partition):
            if self.partition not in get_args(PartitionName):
                names = ", ".join(map(repr, get_args(PartitionName)))
                raise ValueError(
                    f"partition must be one of {names} or a callable, got {self.partition!r}."
                )
        else:
            check_partitioner(self.partition)
        for name, choices in (("utility", Utility), ("rates", Rates)):
            one_of(name, getattr(self, name), choices)
        for name in ("local", "rotate", "honest"):
            boolean(name, getattr(self, name))
        if share_or_none("prior_share", self.prior_share) is None:
            raise TypeError("prior_share must be a number between 0 and 1, got None.")
        if self.window is not None:
            positive_int("window", self.window)

    def learner(self) -> Learner:
        """What makes proposals by these options."""
        return Learner(
            **self._partitioner(),
            local=bool(self.local),
            utility=self.utility,
            share=float(self.prior_share),
            honest=bool(self.honest),
            rotate=bool(self.rotate),
            beta_draws=self.rates == "draw",
            window=None if self.window is None else int(self.window),
        )

    def _partitioner(self) -> dict[str, Any]:
        if self.partition == "forest":
            return {"partitioner": _FOREST, "trees": len(_FOREST)}
        if self.partition == "cart":
            return {"partitioner": Cart()}
        if self.partition == "dyadic":
            return {"partitioner": Dyadic()}
        if self.partition == "bart":
            from amc_pymc.extract.bart import Bart

            return {"partitioner": Bart(), "trees": _BART_DRAWS}
        return {"partitioner": self.partition}


def one_of(name: str, value, choices):
    """A value that is one of those of a Literal type, or an error that names the argument."""
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
    return value
