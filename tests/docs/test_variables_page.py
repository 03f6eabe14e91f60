"""The page of variables is made from their declarations."""

import runpy

from pathlib import Path

from amc_pymc.results.tables import RESULTS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_a_row_for_each_variable():
    text = runpy.run_path(str(DOCS / "variables.py"))["tables"]()
    sections = dict(part.split("\n", 1) for part in text.split("## ")[1:])
    assert list(sections) == list(RESULTS)
    for function, groups in RESULTS.items():
        rows = sections[function].count("\n| `")
        assert rows == sum(map(len, groups.values()))
        assert all(f"Group `{group}`" in sections[function] for group in groups)
    assert "| `log_bf` | model, against | float | log, nats |" in sections["sample_product_space"]


def test_the_site_includes_it():
    assert "{include} generated/variables.txt" in (DOCS / "api" / "results.md").read_text()
