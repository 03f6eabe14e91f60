"""Control variates for the rows' log-likelihoods."""

from amc_pymc.proxies.mode import Mode, find_mode, gaussian_factor
from amc_pymc.proxies.taylor import ResidualSummary, choose_exact_rows, summarise_residuals

__all__ = [
    "Mode",
    "ResidualSummary",
    "choose_exact_rows",
    "find_mode",
    "gaussian_factor",
    "summarise_residuals",
]
