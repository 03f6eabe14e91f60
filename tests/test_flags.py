"""The table of flags: complete, filled in, in the documentation."""

import re
import warnings

from pathlib import Path

import pytest

from amc_pymc.flags import (
    FLAGS,
    RACING_FLAGS,
    Flag,
    flag,
    flag_attributes,
    flag_bits,
    flags_of_bits,
    warn_of,
)

ROOT = Path(__file__).parents[1]
SOURCES = [p.read_text(encoding="utf-8") for p in (ROOT / "amc_pymc").rglob("*.py")]


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_says_what_happened_what_it_means_and_what_to_do(name):
    happened, meaning, advice = FLAGS[name]
    for text in (happened, meaning, advice):
        assert len(text.split()) >= 2
        assert ";" not in text
        assert not text.endswith(".")
        assert text[0].islower() or text[0] in "{" or text.startswith("max_cost")
    assert any(re.search(rf'flag\(\s*"{name}"', source) for source in SOURCES)


def test_the_documentation_lists_all_flags():
    text = (ROOT / "docs" / "howto" / "flags.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert [name for name in listed if name in FLAGS] == list(FLAGS)


def test_texts_are_filled_in():
    made = flag("few_values", values="weights", k=0.912, limit=0.7)
    assert made.message.startswith("a few weights carry the sum (Pareto k = 0.91 > 0.7): ")
    assert made == flag("few_values", values="weights", k=0.912, limit=0.7)
    with pytest.raises(KeyError):
        flag("few_values", values="weights")
    with pytest.raises(KeyError):
        flag("nonsense")


def test_an_error_with_semicolons_stays_one_flag():
    made = [flag("arm_failed", draw=3, error="a; b"), flag("all_zero")]
    stored = flag_attributes(made)
    assert len(stored["flags"].split("; ")) == 2
    assert stored["flag_names"] == "arm_failed; all_zero"
    assert flag_attributes([]) == {"flags": "", "flag_names": ""}


def test_bits_are_those_of_the_flags_however_often_they_occur():
    made = [Flag(RACING_FLAGS[k], "", "", "") for k in (0, 2, 0, 2, 2)]
    assert flag_bits(made) == 5 and flag_bits([]) == 0
    assert flags_of_bits(flag_bits(made)) == [RACING_FLAGS[0], RACING_FLAGS[2]]


def test_warnings_name_the_caller():
    def function():
        warn_of([Flag("a", "b", "c", "d"), Flag("e", "f", "g", "h")], "Subject")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    assert [str(w.message) for w in caught] == ["Subject: b: c, so d.", "Subject: f: g, so h."]
    assert all(w.filename == __file__ for w in caught)
