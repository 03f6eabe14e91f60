"""The code in the guides and how-tos runs as it is printed."""

import re

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.glob("guides/*.md"), *DOCS.glob("howto/*.md")])

#: A Python block, and the comment above it that exempts it: "<!-- not run: the reason -->".
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def blocks_of(text: str) -> list[tuple[int, str, str | None]]:
    """Return line number, code and, if it is not to be run, the reason, for each Python block."""
    return [
        (text.count("\n", 0, m.start("code")), m["code"], m["reason"])
        for m in _BLOCK.finditer(text)
    ]


def run_page(page: Path) -> int:
    """Run the blocks of a page one after the other, with the page's line numbers; return their number."""
    names = {"__name__": "__main__"}
    to_run = [b for b in blocks_of(page.read_text(encoding="utf-8")) if b[2] is None]
    for line, code, _ in to_run:
        exec(compile("\n" * line + code, str(page), "exec"), names)
    return len(to_run)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_page(page) > 0


def test_there_are_pages():
    assert {p.parent.name for p in PAGES} == {"guides", "howto"}


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MyST makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    for target, anchor in links:
        other = (page.parent / target).resolve() if target else page
        if other.parent.is_dir():
            assert other.exists(), target
            assert not anchor or anchor in anchors_of(other), (target, anchor)


def test_every_python_block_is_found_and_an_exempted_one_has_a_reason():
    for page in PAGES:
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
