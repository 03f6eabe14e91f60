"""The page of flags says what the code says."""

import re

from pathlib import Path

import pytest

from amc_pymc.flags import FLAGS

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "flags.md"
CELLS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if len(cells := [c.strip() for c in line.strip("|").split(" | ")]) == 4
}


@pytest.mark.parametrize("name", FLAGS)
def test_the_page_has_the_texts_of_a_flag(name):
    for text, cell in zip(FLAGS[name], CELLS[name], strict=True):
        fixed = [re.escape(part) for part in re.split(r"\{[^}]*\}", text)]
        assert re.fullmatch(".+".join(fixed), cell), (text, cell)
