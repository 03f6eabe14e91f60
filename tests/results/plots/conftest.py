"""Figures are closed after each test."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")
