"""Python blocks of documentation, which run as they are printed."""

import contextlib
import io
import math
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


def printed_after(text: str, line: int, code: str) -> str | None:
    """Return the output that a page shows below a block, or between the block and the next; None without one."""
    rest = "\n".join(text.split("\n")[line + code.count("\n") + 1 :]).split("```python\n")[0]
    found = re.search(r"^```text\n(.*?)^```$", rest, re.DOTALL | re.MULTILINE)
    return found and found[1]


def assert_same_output(shown: str, printed: str) -> None:
    """Shown lines are among those printed; numbers agree to a twentieth, or a few units of their last decimals."""
    number = r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?"
    timed = re.compile(f"(?<=CPU second: about ){number}(; NUTS: ){number}")
    shown, printed = (timed.sub(r"so many\1fewer", t) for t in (shown, printed))
    expected, found = (re.sub(r"\s+", " ", t).strip() for t in (shown, printed))
    words, others = re.sub(number, "#", expected), re.sub(number, "#", found)
    assert words in others, f"printed was:\n{printed}"
    values, fresh = re.findall(number, expected), re.findall(number, found)
    first = others[: others.index(words)].count("#")
    for value, new in zip(values, fresh[first : first + len(values)], strict=True):
        decimals = len(value.partition(".")[2]) if "e" not in value else 300
        a, b = (float(v.replace(",", "")) for v in (value, new))
        assert math.isclose(a, b, rel_tol=0.05, abs_tol=5 * 10.0**-decimals), (value, new)


def run_page(page: Path) -> int:
    """Run the blocks of a page one after the other, with the page's line numbers; return their number.

    Output that the page shows below a block is compared with what the block prints.
    """
    names = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    to_run = [b for b in blocks_of(text) if b[2] is None]
    for line, code, _ in to_run:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            run_block(page, line, code, names)
        shown = printed_after(text, line, code)
        if shown is not None:
            assert_same_output(shown, out.getvalue())
    return len(to_run)


def run_block(page: Path, line: int, code: str, names: dict[str, object]) -> None:
    """Run a block, which begins after a line of a page."""
    exec(compile("\n" * line + code, str(page), "exec"), names)
