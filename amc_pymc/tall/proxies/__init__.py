"""Control variates for log-likelihoods of rows."""

from amc_pymc.tall.proxies.data_space import (
    BinMoments,
    DataProxy,
    bin_moments,
    outlying_rows,
    quantile_bins,
)
from amc_pymc.tall.proxies.mode import (
    Mode,
    absolute_factor,
    find_mode,
    gaussian_factor,
    likelihood_mode,
    posterior_mode,
    search_mode,
)
from amc_pymc.tall.proxies.taylor import (
    EXACT_ROW_CHOICES,
    ResidualSummary,
    choose_exact_rows,
    most_near_kinks,
    rows_near_kinks,
    summarise_residuals,
)

__all__ = [
    "EXACT_ROW_CHOICES",
    "BinMoments",
    "DataProxy",
    "Mode",
    "ResidualSummary",
    "absolute_factor",
    "bin_moments",
    "choose_exact_rows",
    "find_mode",
    "gaussian_factor",
    "likelihood_mode",
    "most_near_kinks",
    "outlying_rows",
    "posterior_mode",
    "quantile_bins",
    "rows_near_kinks",
    "search_mode",
    "summarise_residuals",
]
