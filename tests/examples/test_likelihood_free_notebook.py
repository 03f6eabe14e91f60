"""The notebook on likelihood-free inference: what is stored in it and, slow, its execution."""

import re

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "likelihood_free.ipynb"
PICTURES = 6
#: Posterior means of the four rates by differential equations (Carpenter 2018).
PUBLISHED = (0.55, 0.028, 0.024, 0.80)
LABELS = ("rejection", "trees", "trees, seed 7", "trees, adjusted", "mode")


def read():
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(NOTEBOOK, as_version=4)


def outputs(notebook) -> list:
    return [o for c in notebook.cells for o in c.get("outputs", [])]


def printed(notebook) -> str:
    """All text that the cells put out."""
    return "\n".join(
        o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs(notebook)
    )


def pictures(notebook) -> int:
    return sum("image/png" in o.get("data", {}) for o in outputs(notebook))


def table(text: str) -> dict[str, tuple[float, list[tuple[float, float]]]]:
    """Tolerance, and mean and standard deviation of each rate, by line of the last table."""
    out = {}
    for label, tolerance, rest in re.findall(
        r"^(\w[\w ,]*?) +tolerance (\d\.\d+) +(.*)$", text, re.M
    ):
        pairs = re.findall(r"(\d\.\d{4}) ± (\d\.\d{4})", rest)
        out[label] = float(tolerance), [(float(a), float(b)) for a, b in pairs]
    return out


def check_numbers(text: str) -> None:
    """Trees beat rejection and come nearer, and all agree with each other and with what was published."""
    found = table(text)
    assert tuple(found) == LABELS
    assert all(len(rates) == 4 for _, rates in found.values())
    assert found["trees"][0] == 1.0 < found["rejection"][0] < 1.4
    gain = re.search(r"trees (\d+): ([\d.]+) times as many", text)
    assert int(gain.group(1)) >= 500
    assert 3.0 < float(gain.group(2)) < 12.0
    for k, published in enumerate(PUBLISHED):
        (mean, sd), (other, other_sd) = found["trees"][1][k], found["trees, seed 7"][1][k]
        # Two runs of 500 effective draws or more, to four standard errors.
        assert abs(mean - other) < 4.0 * (sd**2 / 500 + other_sd**2 / 500) ** 0.5
        assert abs(mean - published) < sd
        assert abs(found["mode"][1][k][0] - mean) < 0.5 * sd
        assert 0.0 < found["mode"][1][k][1] < 0.2 * sd
        assert 0.2 * sd < found["trees, adjusted"][1][k][1] < sd
    shares = re.findall(r"\d\d%: (\d+)%", text)
    assert len(shares) == 4
    assert min(map(int, shares)) >= 40


def check_warnings(text: str) -> None:
    """Rejection, the small budget and the simulator that raises are told of, and nothing else."""
    lines = re.findall(r"^warning: .*", text, re.M)
    assert len(lines) >= 4
    assert sum("simulations are worth" in line for line in lines) >= 1
    assert sum("raised ('FloatingPointError: too many hares'" in line for line in lines) == 1
    assert sum("the tolerance ended at" in line for line in lines) >= 2


def test_the_notebook_is_stored_executed_and_clean():
    notebook = read()
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) == PICTURES
    assert all(o.output_type != "error" for o in outputs(notebook))
    assert all(o.name == "stdout" for o in outputs(notebook) if o.output_type == "stream")
    assert all("execution" not in c.metadata for c in code)
    text = NOTEBOOK.read_text()
    assert len(text) < 600_000
    assert not re.search(r"/(home|root|tmp|work|Users)/|https?://", text)


def test_the_stored_numbers_are_right():
    text = printed(read())
    check_numbers(text)
    check_warnings(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = read()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel draws nothing inline
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    ).execute()
    assert pictures(notebook) == PICTURES
    check_numbers(printed(notebook))
    check_warnings(printed(notebook))
