"""Files of the package are short enough to be read at one go."""

from pathlib import Path

import amc_pymc

LONGEST = 500


def test_no_file_has_more_than_five_hundred_lines():
    root = Path(amc_pymc.__file__).parent
    sizes = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for path in root.rglob("*.py")
    }
    assert len(sizes) > 100
    assert {path: size for path, size in sizes.items() if size > LONGEST} == {}
