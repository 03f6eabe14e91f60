"""Pages of the site: their code runs, links of the README exist, the reference is complete."""

import contextlib
import re

from pathlib import Path

import pytest

from documented_code import assert_same_output, blocks_of, run_page

import amc_pymc as amc

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = {"guides", "howto"}  # test_code_blocks.py runs these
SITE = {"_build", "_templates", "api", "examples", *FOLDERS}
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if p.relative_to(DOCS).parts[0] not in SITE]
WITH_CODE = {"README": ROOT, "start": DOCS, "choose": DOCS, "faq": DOCS}


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = WITH_CODE[name] / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    assert len(blocks_of(text)) == text.count("```python\n")
    assert run_page(page) > 0


def test_no_other_page_has_code_that_is_not_run():
    with_code = {p.stem for p in PAGES if "```python" in p.read_text(encoding="utf-8")}
    assert with_code == set(WITH_CODE) - {"README"}


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "benchmarks" / "README.md"], ids=str)
def test_anchors_and_pictures_of_a_readme_exist(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
            assert anchor in anchors, anchor


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_the_reference_lists_every_public_name():
    listed = set()
    for page in (DOCS / "api").glob("*.md"):
        listed |= set(re.findall(r"^   (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(amc.__all__) - {"__version__"} <= listed


def test_each_term_of_the_glossary_is_explained_once():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    body = text.split("```{glossary}\n")[1].split("```")[0]
    entries = body.strip().split("\n\n")
    terms = [entry.splitlines()[0] for entry in entries]
    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms, key=str.lower)
    assert all(entry.rstrip().endswith(".") and len(entry.splitlines()) > 1 for entry in entries)


@pytest.mark.parametrize(
    "printed, same",
    [
        ("a\nx 1.02 3", True),
        ("x 1.04 3", True),  # within a twentieth
        ("x 1.30 3", False),
        ("y 1.02 3", False),
        ("x 1.02", False),
    ],
)
def test_a_shown_output_is_compared_with_a_fresh_one(printed, same):
    raised = contextlib.nullcontext() if same else pytest.raises(AssertionError)
    with raised:
        assert_same_output("x   1.02 3\n", printed)
