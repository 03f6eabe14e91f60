"""The example's handling of data; and, slow, the whole example."""

import numpy as np
import pandas as pd
import pytest

from examples.scripts import load

demo = load("tall_regression.py")


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "data.csv"
        path.write_text(text)
        return path

    return write


def design_of(target="y", **columns):
    return demo.make_design(pd.DataFrame(columns), target, "title", "slug")


def column(design, name):
    return design.x[:, design.names.index(name)]


# --- reading ------------------------------------------------------------------------------------


def test_reading_reports_missing_and_empty_files(tmp_path, write):
    with pytest.raises(demo.DataError, match=r"there is no file .*nowhere\.csv"):
        demo.read_table(tmp_path / "nowhere.csv")
    with pytest.raises(demo.DataError, match="is empty"):
        demo.read_table(write(" \n"))
    with pytest.raises(demo.DataError, match="cannot be read as CSV"):
        demo.read_table(write("a,b\n1,2\n3,4,5\n"))


# --- covariates ---------------------------------------------------------------------------------


def test_numbers_are_standardised_and_pairs_become_zero_and_one():
    design = design_of(y=[0, 1, 0, 1], a=[1.0, 2.0, 3.0, 5.0], b=[7, 7, 9, 7])
    assert column(design, "a").mean() == pytest.approx(0, abs=1e-12)
    assert column(design, "a").std() == pytest.approx(1)
    assert column(design, "b").tolist() == [0, 0, 1, 0]


def test_levels_are_relative_to_the_most_frequent_and_missing_is_one():
    job = ["baker"] * 5 + ["clerk"] * 6 + [None] * 5
    design = design_of(y=[0, 1] * 8, job=job)
    assert design.names == ("job=baker", "job=missing")
    assert column(design, "job=baker").tolist() == [1] * 5 + [0] * 11
    assert column(design, "job=missing").tolist() == [0] * 11 + [1] * 5


# --- the program --------------------------------------------------------------------------------


def test_the_demonstration_data():
    design = demo.doctor_visits()
    assert (design.rows, len(design.names), design.family) == (20_190, 9, "negative_binomial")
    simulated = demo.simulated(1000, seed=3)
    assert simulated.x.shape == (1000, 10)
    assert [*simulated.truth] == [*simulated.mode] == ["intercept", *simulated.names]


def test_the_mode_of_the_simulated_data_is_one():
    design = demo.simulated(2000, seed=3, covariates=2)
    logp = demo.build_model(design).compile_logp()

    def at(b):
        return logp({"intercept": np.array(b[0]), "slope": np.array(b[1:])})

    mode = np.array([*design.mode.values()])
    for step in (*np.eye(3), *-np.eye(3)):
        assert at(mode) > at(mode + 1e-3 * step)


def test_errors_are_printed_without_a_traceback(write, capsys, tmp_path):
    path = write("a,b\n1,2\n3,5\n4,4\n")
    code = demo.main(["--data", str(path), "--target", "c", "--out", str(tmp_path / "out")])
    assert code == 2
    assert "error: there is no column 'c'; the columns are 0 'a', 1 'b'" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_by_pytensor")
@pytest.mark.filterwarnings("default")
def test_the_quick_demonstration(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert demo.main(["--quick", "--rows", "50_000", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Racing makes" in printed
    written = {path.name for path in tmp_path.iterdir()}
    for slug in ("doctor_visits", "simulated"):
        for name in ("coefficients.csv", "trace.png", "posterior.png", "rows.png"):
            assert f"{slug}_{name}" in written
    visits = pd.read_csv(tmp_path / "doctor_visits_coefficients.csv", index_col=0)
    assert visits["difference / MCSE"].abs().max() < 5
    np.testing.assert_allclose(visits["sd"], visits["NUTS sd"], rtol=0.25)
    simulated = pd.read_csv(tmp_path / "simulated_coefficients.csv", index_col=0)
    assert simulated["(mean - mode) / MCSE"].abs().max() < 5
    assert simulated["(mean - truth) / sd"].abs().max() < 5
