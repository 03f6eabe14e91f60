"""What the tests of notebooks share: reading them, what a stored one must be like, running them."""

import re
import tempfile

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def read(name: str):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(EXAMPLES / name, as_version=4)


def outputs(notebook) -> list:
    return [o for c in notebook.cells for o in c.get("outputs", [])]


def printed(notebook) -> str:
    """All text that the cells put out."""
    return "\n".join(
        o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs(notebook)
    )


def pictures(notebook) -> int:
    return sum("image/png" in o.get("data", {}) for o in outputs(notebook))


def check_stored(name: str, *, n_pictures: int, most_characters: int) -> None:
    """Executed from top to bottom without errors, and free of paths and addresses."""
    notebook = read(name)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) == n_pictures
    assert all(o.output_type != "error" for o in outputs(notebook))
    assert all(o.name == "stdout" for o in outputs(notebook) if o.output_type == "stream")
    assert all("execution" not in c.metadata for c in code)
    text = (EXAMPLES / name).read_text()
    assert len(text) < most_characters
    assert not re.search(r"/(home|root|tmp|work|Users)/|https?://", text)


def executed(name: str, monkeypatch, replaced=("", "")):
    """The notebook after a run of its own, in an empty folder, with something replaced in its code."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = read(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.source = cell.source.replace(*replaced)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel draws nothing inline
    resources = {"metadata": {"path": tempfile.mkdtemp()}}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    ).execute()
    return notebook
