"""Gibbs sampling of discrete variables that reads a few rows of tall data per draw."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, cast

import numpy as np

from pymc import Model
from pymc.util import RandomGenerator

from amc_pymc.arguments import positive_int
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.factors import element_states
from amc_pymc.reading.graphs import context_model, initial_point_of, remembering
from amc_pymc.results.tables import GIBBS_STATS
from amc_pymc.rows import Rows
from amc_pymc.steps.preparation import Options, chosen_vars, prepare
from amc_pymc.steps.racing_step import RacingStep, stat_dtypes
from amc_pymc.tall.racing import Race
from amc_pymc.tall.samplers import gibbs
from amc_pymc.tall.samplers.chain import Audits
from amc_pymc.tall.samplers.fit import Preparation


class RacingGibbs(RacingStep):
    r"""Gibbs step for discrete variables on which every row depends, reading few rows per draw.

    An element with K states is set to the state with the highest
    :math:`\log p(x_k) + \varepsilon_k`, with Gumbel noise :math:`\varepsilon_k`. This is an exact
    draw from its full conditional. A race finds the state: rows are read in doubling batches
    without replacement, states that cannot win any more are dropped, and the race ends when one is
    left. Elements are drawn one at a time, in random order.

    Use it for Bernoulli, Categorical and other bounded discrete variables of models with at least
    about ten thousand conditionally independent rows. The sampler is approximate: each draw differs
    from the exact draw with the same noise with probability at most ``delta``. The total variation
    error of the conditional distribution is therefore at most ``delta``. The actual frequency of
    errors is measured on audited draws; see :func:`amc_pymc.decision_error`.

    Parameters
    ----------
    vars : sequence of variables or their names, optional
        Discrete variables to sample; default: all. Others may have their own steps.
    delta : float, default 0.05
        Maximum error probability of a draw, in (0, 0.5).
    race : {"normal", "exact"} or a race such as NormalRace
        ``"exact"`` reads all rows: a plain Gibbs sampler, for validation.
    max_states : int, default 1000
        Maximum number of states of a variable.
    blocked : bool, default True
        Draw all elements of all variables in one random order.
    rows : Rows, mapping of str to array, path or Dask dataframe, optional
        As for :class:`RacingMetropolis`: rows that are larger than memory. All variables that rows
        depend on must be discrete and sampled by this step.
    observed_vars, batch_size, audits, transitions_per_draw
        As for :class:`RacingMetropolis`; a transition is a sweep over all elements.
    model, rng, progressbar
        As for :class:`RacingMetropolis`.

    Raises
    ------
    ValueError
        If an argument is out of range, there is no discrete or no observed variable, ``vars`` are
        continuous, a state space is unbounded, unknown or too large, a variable has one value per
        row, or rows are not finite at the start. :class:`amc_pymc.NotRowFactorised` is raised if
        rows cannot be evaluated one by one.

    Notes
    -----
    State i of K is an arm with the rewards
    :math:`l_{i,n} = \log f_n(i) + (\log f_0(i) + \varepsilon_i) / N`. The race finds the arm with the
    highest mean over the rows. States in which the rest of the model has log density
    :math:`-\infty` are excluded; if only one is left, no row is read.

    A control variate expands every row in the quantities that it computes from the discrete
    variables (``gamma * beta``, ``mu[k]``). If rows are not smooth in them, as where a discrete
    variable selects data, races read rows themselves, and many decisions are close: use
    ``delta=0.01, batch_size=200``.

    ``sample_stats`` contains the variables that the page "Variables of results" lists.

    References
    ----------
    Y. Chen and Z. Ghahramani (2016). Scalable Discrete Sampling as a Multi-Armed Bandit Problem.
    ICML, PMLR 48:2492-2501.
    G. Papandreou and A. Yuille (2011). Perturb-and-MAP random fields. ICCV.
    doi:10.1109/ICCV.2011.6126242

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> y = np.random.default_rng(1).normal(2.0, 10.0, size=20_000)
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", p=np.ones(5) / 5)
    ...     mean = 1.8 + 0.1 * k
    ...     obs = pm.Normal("obs", mean, 10, observed=y)
    ...     idata = pm.sample(
    ...         300,
    ...         tune=50,
    ...         step=amc.RacingGibbs([k]),
    ...         chains=2,
    ...         cores=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...     )
    >>> log_p = [-0.5 * np.sum((y - 1.8 - 0.1 * j) ** 2) / 100 for j in range(5)]
    >>> exact = np.exp(log_p - np.logaddexp.reduce(log_p))
    >>> bool(abs(idata.posterior["k"].mean() - exact @ np.arange(5)) < 0.1)
    True
    """

    name = "racing_gibbs"
    sampler: gibbs.Gibbs
    core: ClassVar[ModuleType] = gibbs
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = stat_dtypes(GIBBS_STATS)

    @remembering()
    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        observed_vars: Sequence[Any] | None = None,
        delta: float | None = None,
        race: Literal["normal", "exact"] | Race = "normal",
        batch_size: int | None = None,
        audits: int | Audits = 200,
        transitions_per_draw: int = 1,
        max_states: int = 1000,
        rows: Rows | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
        blocked: bool = True,
        progressbar: bool = True,
    ):
        options = Options(
            observed_vars=observed_vars,
            delta=delta,
            race=race,
            batch_size=batch_size,
            audits=audits,
            transitions_per_draw=transitions_per_draw,
            rows=rows,
            progressbar=progressbar,
        )
        model = context_model(model)
        most = positive_int("max_states", max_states)
        value_vars = chosen_vars(vars, model, type(self).__name__, discrete=True)
        names, point = [v.name for v in value_vars], initial_point_of(model)
        possible = _states(model, value_vars, most, point)
        prepared = prepare(model, names, options, point=point, fit=False)
        elements = _elements(prepared, possible)
        sampler = gibbs.Gibbs(
            prepared=prepared,
            elements=elements,
            race=options.race,
            audits=options.audits,
            transitions=options.transitions_per_draw,
        )
        self._set_up(sampler, model, value_vars, rng, options.progressbar)


def _states(
    model: Model,
    value_vars: Sequence[Any],
    max_states: int,
    point: Mapping[str, np.ndarray],
) -> dict[str, list[np.ndarray]]:
    """Return the states of each element of each variable; raise an error if the start is not one."""
    out = {}
    for v in value_vars:
        states = element_states(model, v, max_states=max_states)
        for value, possible in zip(np.ravel(point[v.name]), states):
            if value not in possible:
                raise ValueError(
                    f"{v.name!r} starts at {value}, which is not one of its states "
                    f"({possible[0]} to {possible[-1]}); give initval="
                )
        out[v.name] = states
    return out


def _elements(prepared: Preparation, possible: dict[str, list[np.ndarray]]) -> gibbs.Elements:
    """Return the elements to draw, in the order of the variables."""
    layout, rows = prepared.densities.layout, cast(ModelDensities, prepared.densities).rows
    local = [n for n in possible if n in rows.row_local]
    if local:
        raise ValueError(
            f"{', '.join(local)} has one value per row, which one row decides: there is nothing to "
            "race. Sum it out (pm.Mixture), or leave it to pm.CategoricalGibbsMetropolis."
        )
    places = [(name, k) for name in possible for k in layout.indices([name])]
    states = [s for name in possible for s in possible[name]]
    raced = [name in rows.value_vars for name, _ in places]
    return gibbs.elements_of([k for _, k in places], states, raced)
