"""Options that racing step methods share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytensor.graph.basic import Variable

from amc_pymc.arguments import positive_int
from amc_pymc.rows import Rows, as_rows
from amc_pymc.tall.racing.rules import as_race
from amc_pymc.tall.samplers.tuning import Audits

#: Default size of the first batch of groups, whose residuals are sums over many rows.
_GROUPS = 20


@dataclass(kw_only=True)
class Options:
    """Checked arguments shared by all racing steps; documented in RacingMetropolis.

    ``race`` and ``audits`` become settings; ``race_of_groups`` is the race over groups instead of rows.
    """

    observed_vars: Sequence[Any] | None = None
    delta: float | None = None
    race: Any = "auto"
    batch_size: int | None = None
    audits: Any = 200
    transitions_per_draw: Any = 1
    rows: Rows | None = None
    marginalize: Any = None
    progressbar: bool = True
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
        self.marginalize, self.rows = _marginalize(self.marginalize), as_rows(self.rows)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Options:
        """Return the options among a step's arguments."""
        names = [f for f, spec in cls.__dataclass_fields__.items() if spec.init]
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def sampler_settings(self, *, groups: bool = False) -> dict[str, Any]:
        """Return the settings of a :class:`~amc_pymc.tall.samplers.chain.Sampler`."""
        number = 1 if self.transitions_per_draw == "auto" else self.transitions_per_draw
        race = self.race_of_groups if groups else self.race
        return {"race": race, "audits": self.audits, "transitions": number}


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
