"""Options of examples: those that do not fit are refused."""

import pytest

from examples.scripts import load

BAD = {
    "flights": ["--draws 0", "--rows x", "--nothing"],
    "option_pricing": ["--paths 10", "--strikes -1", "--nothing"],
    "tall_regression": ["--data a.csv", "--target y", "--no-header", "--rows 0"],
    "variable_selection": ["--rows 10", "--draws x", "--nothing"],
}


@pytest.mark.parametrize("name", BAD)
def test_options_that_do_not_fit_are_refused(name, capsys):
    demo = load(f"{name}.py")
    for options in BAD[name]:
        with pytest.raises(SystemExit):
            demo.main(options.split())
        assert "usage:" in capsys.readouterr().err
