"""The notebook on ARCH order selection: what is stored in it and, slow, its execution."""

import re

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "arch_order.ipynb"


def read():
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(notebook) -> str:
    """All text that the cells put out."""
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


def pictures(notebook) -> int:
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    return sum("image/png" in o.get("data", {}) for o in outputs)


def test_the_notebook_is_stored_executed_and_clean():
    notebook = read()
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) == 4
    assert all(o.output_type != "error" for c in code for o in c.outputs)
    assert all("execution" not in c.metadata for c in code)
    text = NOTEBOOK.read_text()
    assert len(text) < 400_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


def test_stored_probabilities_are_those_of_importance_sampling():
    """Which puts 0.96 on order 10 and 0.04 on order 15, with errors of 0.001."""
    table = re.search(r"its MCSE.*?\narch5.*", printed(read()), re.S).group()
    for order, reference in ((10, 0.96), (15, 0.04)):
        prob, error = re.search(rf"arch{order} +([\d.]+) +([\d.]+)", table).groups()
        assert float(error) < 0.02
        assert float(prob) == pytest.approx(reference, abs=4 * max(float(error), 0.002))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("arch")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = read()
    setting = "ORDERS = (5, 10, 15, 20, 25, 30)"
    cell = next(c for c in notebook.cells if setting in c.source)
    cell.source = cell.source.replace(setting, "ORDERS = (5, 10)")
    monkeypatch.setenv("ARCH_ORDER_DRAWS", "300")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel draws nothing inline
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources=resources
    ).execute()
    assert pictures(notebook) == 4
    text = printed(notebook)
    # Order 5 is hopeless by some eighty units of the log Bayes factor.
    bayes_factor = float(re.search(r"arch5 .*?(-\d\d\.\d+)", text).group(1))
    assert -100 < bayes_factor < -60
    assert "of 5,020 rows per decision" in text
