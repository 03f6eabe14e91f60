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

#: Trees of a forest. Random cuts keep weights even; the best cuts find narrow posteriors with few
#: simulations, but are not worth their cost with many.
_RANDOM, _BEST = Cart(random_cuts=True), Cart(random_beyond=10_000)
_FOREST = (_RANDOM, _RANDOM, _BEST, _BEST)
#: Number of BART partitions in a mixture.
_BART_DRAWS = 4


@dataclass(frozen=True, kw_only=True)
class TreeProposal:
    r"""Options for how :func:`sample_abc_tree` learns where to simulate.

    The defaults suit most problems. Weights are exact for all options; these affect the number of effective draws,
    not their distribution.

    Parameters
    ----------
    partition : {"forest", "cart", "dyadic", "bart"} or callable, default "forest"
        Boxes: two extremely randomised regression trees and two CART trees (at most 1000 leaves each) on parts of
        the simulations, all four randomised for many simulations; one CART tree; dyadic halving; draws of Bayesian
        additive trees (extra ``bart``); or your own :class:`amc_pymc.abc_tree.Partitioner`.
    local : bool, optional
        Whether to draw also from mixtures of Student t kernels, which follow posteriors that are narrow in oblique
        directions. Their share of each batch is learned from earlier simulations; boxes and the prior keep at least
        a tenth. Only, and by default, with ``utility="ess"``.
    utility : {"ess", "efficiency", "posterior", "kl"}, default "ess"
        Objective of the proposals given acceptance probabilities. "ess", effective draws per simulation:
        :math:`q_k \propto \pi_k \mu_k^\gamma`, with :math:`\gamma` chosen by prediction between 1/2, which is
        optimal for known probabilities, and 1. The others are :math:`\omega^2`, :math:`\omega^1` and
        :math:`\omega^3` of the paper; see :func:`amc_pymc.abc_tree.best_proposal`.
    prior_share : float, default 0.05
        Share of each batch drawn from the prior. No weight exceeds 1 / prior_share times the gain.
    rates : {"mean", "draw"}, default "mean"
        Use the means of acceptance probabilities, or draws from their Beta distributions.
    rotate : bool, optional
        Whether to cut every other tree along principal axes of the accepted simulations, for correlated posteriors.
        Only, and by default, with several trees: "forest" and "bart".
    honest : bool, default False
        Whether to estimate acceptance probabilities from simulations that did not choose the cuts.
    window : int, optional
        Number of most recent rounds to learn from. Default: all.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; the error names it and its value.

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
    local: bool | None = None
    utility: Utility = "ess"
    prior_share: float = 0.05
    rates: Rates = "mean"
    rotate: bool | None = None
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
        boolean("honest", self.honest)
        several = isinstance(self.partition, str) and self.partition in ("forest", "bart")
        for name, applies, other in (
            ("local", self.utility == "ess", f"utility='ess', got utility={self.utility!r}"),
            ("rotate", several, f"several trees, got partition={self.partition!r}"),
        ):
            given = getattr(self, name)
            if given is not None and boolean(name, given) and not applies:
                raise ValueError(f"{name}=True needs {other}; leave one of them out.")
            object.__setattr__(self, name, applies if given is None else given)
        if share_or_none("prior_share", self.prior_share) is None:
            raise TypeError("prior_share must be a number between 0 and 1, got None.")
        if self.window is not None:
            positive_int("window", self.window)

    def learner(self) -> Learner:
        """Return the learner that makes proposals with these options."""
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
            from amc_pymc.reading.simulators.bart import Bart

            return {"partitioner": Bart(), "trees": _BART_DRAWS}
        return {"partitioner": self.partition}


def one_of(name: str, value: Any, choices: Any) -> Any:
    """Return `value` if it is among the choices of a Literal type, else raise a ValueError."""
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
    return value
