"""Settings behind the string arguments of racing step methods, and their shared options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytensor.graph.basic import Variable

from amc_pymc.arguments import positive_int
from amc_pymc.rows import Rows, as_rows
from amc_pymc.tall.racing.rules import as_race
from amc_pymc.tall.samplers.tuning import KINDS, RANDOM_WALK, SURROGATE, Audits


@dataclass(frozen=True)
class TaylorProxy:
    """Second-order Taylor control variate of every row around the posterior mode.

    Parameters
    ----------
    max_dim : int
        Maximum number of coordinates D of the expansion. It stores D + D^2 sums and makes D passes
        over the data.
    subsample : int
        Number of rows on which the mode search starts.
    exact_rows : int or "auto"
        Number of rows with the largest residuals, which are evaluated at every decision instead of
        raced. ``"auto"`` chooses the number with the cheapest decisions or, if
        log-likelihoods have kinks, the rows near them.
    """

    max_dim: int = 500
    subsample: int = 20_000
    exact_rows: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.exact_rows != "auto":
            positive_int("exact_rows", self.exact_rows, 0)
        positive_int("max_dim", self.max_dim)
        positive_int("subsample", self.subsample, 2)


#: Default size of the first batch of groups, whose residuals are sums over many rows.
_GROUPS = 20


@dataclass(kw_only=True)
class Options:
    """Checked arguments shared by all racing steps; documented in RacingMetropolis.

    ``race``, ``proxy`` and ``audits`` become settings; ``race_of_groups`` is the race over groups
    instead of rows; ``insist`` is true if the user requires the control variate.
    """

    observed_vars: Sequence[Any] | None = None
    delta: float | None = None
    race: Any = "auto"
    batch_size: int | None = None
    proxy: Any = "auto"
    audits: Any = 200
    transitions_per_draw: Any = 1
    rows: Rows | None = None
    marginalize: Any = None
    progressbar: bool = True
    insist: bool = field(default=False, init=False)
    race_of_groups: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        named = self.race
        self.race = self.race_of_groups = as_race(named, self.delta, self.batch_size)
        if named in ("auto", "normal"):  # remainders of groups have no bounds
            size = _GROUPS if self.batch_size is None else self.batch_size
            self.race_of_groups = as_race("normal", self.delta, size)
        if not isinstance(self.audits, Audits):
            self.audits = Audits(self.audits)
        if self.transitions_per_draw != "auto":
            positive_int("transitions_per_draw", self.transitions_per_draw)
        self.proxy, self.insist = as_proxy(self.proxy)
        self.marginalize, self.rows = _marginalize(self.marginalize), as_rows(self.rows)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Options:
        """Return the options among a step's arguments."""
        names = [f for f, spec in cls.__dataclass_fields__.items() if spec.init]
        return cls(**{name: arguments[name] for name in names if name in arguments})

    @property
    def no_proxy(self) -> str:
        """Reason why no control variate is possible; empty if one may be."""
        return "proxy=None" if self.proxy is None else ""

    def sampler_settings(self, *, groups: bool = False) -> dict[str, Any]:
        """Return the settings of a :class:`~amc_pymc.tall.samplers.chain.Sampler`."""
        number = 1 if self.transitions_per_draw == "auto" else self.transitions_per_draw
        race = self.race_of_groups if groups else self.race
        return {"race": race, "audits": self.audits, "transitions": number}


def proposal_kinds(proposal: str, reason: str) -> tuple[int, ...]:
    """Return the kinds of a step's proposals; both for ``"auto"``, which compares them during tuning.

    ``reason`` says why there is no control variate, and thus no surrogate; empty if there may be one.
    """
    if proposal == "auto":
        return (RANDOM_WALK,) if reason else (RANDOM_WALK, SURROGATE)
    if not isinstance(proposal, str) or proposal not in KINDS:
        raise ValueError(
            f"proposal must be 'auto', {', '.join(map(repr, KINDS))}, got {proposal!r}"
        )
    if reason and proposal == "surrogate":
        raise ValueError(
            "proposal='surrogate' needs the mode that the control variate is built on, and there "
            f"is none: {reason}. Use 'auto' or 'random_walk'."
        )
    return (KINDS.index(proposal),)


def as_proxy(proxy: str | TaylorProxy | None) -> tuple[TaylorProxy | None, bool]:
    """Return the settings of the control variate and whether the user insists on it."""
    if isinstance(proxy, TaylorProxy | None):
        return proxy, proxy is not None
    if proxy in ("auto", "taylor"):
        return TaylorProxy(), proxy == "taylor"
    raise ValueError(f"proxy must be 'auto', 'taylor', TaylorProxy or None, got {proxy!r}")


def _marginalize(wanted: Any) -> Any:
    """Return ``"auto"``, None, or a list of names and variables."""
    if wanted is None or wanted == "auto":
        return wanted
    wanted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    if not wanted or not all(isinstance(v, str | Variable) for v in wanted):
        raise ValueError(
            "marginalize must be 'auto', None or variables with a value for each group, "
            f"got {wanted}"
        )
    return wanted
