"""The BG/NBD model of PyMC-Marketing with racing steps and evidence."""

import numpy as np
import pandas as pd
import pytest

from models.customer_lifetime import simulate_customers

clv = pytest.importorskip("pymc_marketing.clv")

SHORT = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "quiet": True}


@pytest.fixture(scope="module")
def model():
    data = simulate_customers(800, 1, varying=(), seed=3)
    frame = pd.DataFrame(
        {
            "customer_id": np.arange(len(data.age)),
            "frequency": data.history[:, 0],
            "recency": data.history[:, 1],
            "T": data.age,
        }
    )
    found = clv.BetaGeoModel(data=frame)
    found.build_model()
    return found.model
