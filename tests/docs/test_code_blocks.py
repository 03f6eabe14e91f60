"""The code in the guides, the how-tos and CONTRIBUTING.md runs as it is printed."""

import re

from pathlib import Path

import pytest

from documented_code import blocks_of, run_block, run_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.glob("guides/*.md"), *DOCS.glob("howto/*.md")])
CONTRIBUTING = DOCS.parent / "CONTRIBUTING.md"
#: What a contributor may add; each has a section with an example.
KINDS = ("A race rule", "A bandit policy", "An estimator", "A partition of ABC-Tree", "A plot")


def section_of(text: str, line: int) -> str:
    """Return the last heading at or before a line, counted from 1, outside of blocks."""
    before = "\n".join(text.split("\n")[:line])
    before = re.sub(r"^```.*?^```$", "", before, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", before, re.MULTILINE)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_page(page) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_of_contributing_runs_by_itself(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = CONTRIBUTING.read_text(encoding="utf-8")
    ((line, code, reason),) = (b for b in blocks_of(text) if section_of(text, b[0]) == kind)
    assert reason is None
    assert code.count("\n") <= 30
    assert "assert" in code
    run_block(CONTRIBUTING, line, code, {"__name__": "__main__"})


def test_contributing_has_no_other_python_blocks_and_is_short():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert tuple(section_of(text, line) for line, _, _ in blocks_of(text)) == KINDS
    assert len(text.splitlines()) < 300


def test_paths_in_contributing_exist():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w.]+/[\w./]*)`", text) if "_build" not in name}
    roots = (DOCS.parent, DOCS.parent / "amc_pymc")
    assert len(named) > 30
    assert [n for n in sorted(named) if not any((root / n).exists() for root in roots)] == []


def test_there_are_pages():
    assert {p.parent.name for p in PAGES} == {"guides", "howto"}


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MyST makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda p: p.stem)
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    for target, anchor in links:
        other = (page.parent / target).resolve() if target else page
        if other.parent.is_dir():
            assert other.exists(), target
            assert not anchor or anchor in anchors_of(other), (target, anchor)


def test_every_python_block_is_found_and_an_exempted_one_has_a_reason():
    for page in (*PAGES, CONTRIBUTING):
        text = page.read_text(encoding="utf-8")
        assert len(blocks_of(text)) == text.count("```python\n"), page
    text = (
        "<!-- not run: it needs a cluster -->\n\n```python\n1 / 0\n```\n\n```python\nx = 1\n```\n"
    )
    assert blocks_of(text) == [(3, "1 / 0\n", "it needs a cluster"), (7, "x = 1\n", None)]


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n1 / 0\n```\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page)
    assert caught.traceback[-1].lineno + 1 == 5
