"""The notebook on ARCH order selection: what is stored in it and, slow, its execution."""

import re

import pytest

from examples.notebooks import check_stored, executed, pictures, printed, read

NOTEBOOK = "arch_order.ipynb"


def test_the_notebook_is_stored_executed_and_clean():
    check_stored(NOTEBOOK, n_pictures=4, most_characters=400_000)


def test_stored_probabilities_are_those_of_importance_sampling():
    """Which puts 0.96 on order 10 and 0.04 on order 15, with errors of 0.001."""
    table = re.search(r"its MCSE.*?\narch5.*", printed(read(NOTEBOOK)), re.S).group()
    for order, reference in ((10, 0.96), (15, 0.04)):
        prob, error = re.search(rf"arch{order} +([\d.]+) +([\d.]+)", table).groups()
        assert float(error) < 0.02
        assert float(prob) == pytest.approx(reference, abs=4 * max(float(error), 0.002))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    pytest.importorskip("arch")
    monkeypatch.setenv("ARCH_ORDER_DRAWS", "300")
    orders = ("ORDERS = (5, 10, 15, 20, 25, 30)", "ORDERS = (5, 10)")
    notebook = executed(NOTEBOOK, monkeypatch, orders)
    assert pictures(notebook) == 4
    text = printed(notebook)
    # Order 5 is hopeless by some eighty units of the log Bayes factor.
    bayes_factor = float(re.search(r"arch5 .*?(-\d\d\.\d+)", text).group(1))
    assert -100 < bayes_factor < -60
    assert "of 5,020 rows per decision" in text
