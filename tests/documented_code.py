"""Python blocks of documentation, which run as they are printed."""

import re

from pathlib import Path

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
        run_block(page, line, code, names)
    return len(to_run)


def run_block(page: Path, line: int, code: str, names: dict[str, object]) -> None:
    """Run a block, which begins after a line of a page."""
    exec(compile("\n" * line + code, str(page), "exec"), names)
