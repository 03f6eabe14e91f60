"""The example's handling of data; and, slow, the whole example."""

import importlib.util
import sys

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "tall_regression.py"


def load():
    spec = importlib.util.spec_from_file_location("tall_regression_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


demo = load()


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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,2\n3,4\n", ["a", "b"]),
        ("1,2\n3,4\n", ["x0", "x1"]),
        ("age, job\n39, clerk\n50, baker\n", ["age", "job"]),
        ("39, clerk\n50, baker\n", ["x0", "x1"]),
        ("?, clerk\n50, baker\n", ["x0", "x1"]),
        (",b\n0,1\n1,2\n", ["Unnamed: 0", "b"]),
        ("size,colour\nbig,red\nsmall,red\n", ["size", "colour"]),
        ("big,red\nsmall,red\n", ["x0", "x1"]),
        ("\ufeffa;b\n1;2\n3;4\n", ["a", "b"]),
        ("a\tb\n1\t2\n", ["a", "b"]),
        ('name,y\n"Doe, J",1\n"Roe, R",2\n', ["name", "y"]),
    ],
)
def test_header_and_delimiter_are_found(write, text, names):
    assert list(demo.read_table(write(text)).columns) == names


def test_header_can_be_forced(write):
    path = write("1990,1991\n3,4\n5,6\n")
    assert demo.read_table(path).shape == (3, 2)
    assert list(demo.read_table(path, header=True).columns) == ["1990", "1991"]
    assert demo.read_table(write("a,b\n1,2\n"), header=False).shape == (2, 2)


def test_missing_values_leave_a_column_numeric(write):
    table = demo.read_table(write("a,b\n1,x\n?,NA\n,\n4, y\n"))
    assert table["a"].tolist()[0] == 1.0
    assert table["a"].isna().tolist() == [False, True, True, False]
    assert table["b"].isna().tolist() == [False, True, True, False]
    assert table["b"].tolist()[3] == "y"


def test_reading_reports_missing_and_empty_files(tmp_path, write):
    with pytest.raises(demo.DataError, match=r"there is no file .*nowhere\.csv"):
        demo.read_table(tmp_path / "nowhere.csv")
    with pytest.raises(demo.DataError, match="is empty"):
        demo.read_table(write(" \n"))
    with pytest.raises(demo.DataError, match="cannot be read as CSV"):
        demo.read_table(write("a,b\n1,2\n3,4,5\n"))


# --- target and family --------------------------------------------------------------------------


def test_target_by_name_and_index():
    table = pd.DataFrame({"a": [1], "b": [2], "7": [3]})
    assert demo.find_target(table, "b") == "b"
    assert demo.find_target(table, "0") == "a"
    assert demo.find_target(table, "-1") == "7"
    assert demo.find_target(table, "7") == "7"


@pytest.mark.parametrize("target", ["income", "2", "-3"])
def test_unknown_target_lists_the_columns(target):
    with pytest.raises(demo.DataError, match=r"there is no column .*0 'a', 1 'b'\. .*--no-header"):
        demo.find_target(pd.DataFrame({"a": [1], "b": [2]}), target)


@pytest.mark.parametrize(
    ("y", "family", "values"),
    [
        ([0, 1, 1, 0], "bernoulli", [0, 1, 1, 0]),
        ([1, 2, 2, 1], "bernoulli", [0, 1, 1, 0]),
        (["<=50K", ">50K", ">50K", "<=50K"], "bernoulli", [0, 1, 1, 0]),
        ([True, False, False, True], "bernoulli", [1, 0, 0, 1]),
        ([0, 3, 1, 12], "negative_binomial", [0, 3, 1, 12]),
        ([0.0, 3.0, 1.0, 12.0], "negative_binomial", [0, 3, 1, 12]),
        ([-1, 0, 1, 0], "student_t", np.array([-1, 0, 1, 0]) * np.sqrt(2)),
        ([0.5, 1.5, 1.0, 1.0], "student_t", np.array([-1, 1, 0, 0]) * np.sqrt(2)),
    ],
)
def test_family_follows_from_the_target(y, family, values):
    design = design_of(y=y, a=[1.0, 2.0, 3.0, 5.0])
    assert design.family == family
    np.testing.assert_allclose(design.y, values)
    assert np.issubdtype(design.y.dtype, np.floating) == (family == "student_t")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([3, 3, 3], "the target y is constant: it is always 3"),
        (["a", "b", "c"], "holds text with 3 different values"),
        ([1.0, np.inf, 2.0], "infinite"),
        ([1.0, np.nan, np.nan], "at least 2 rows, there are 1"),
    ],
)
def test_targets_that_cannot_be_used(y, message):
    with pytest.raises(demo.DataError, match=message):
        design_of(y=y, a=[1.0, 2.0, 4.0])


def test_rows_without_target_are_left_out():
    design = design_of(y=[0, 1, None, 1], a=[1.0, 2.0, 100.0, 4.0])
    assert design.rows == 3
    assert design.x.max() < 2
    assert "left out 1 rows without y" in design.notes


# --- covariates ---------------------------------------------------------------------------------


def test_numbers_are_standardised_and_pairs_become_zero_and_one():
    design = design_of(y=[0, 1, 0, 1], a=[1.0, 2.0, 3.0, 5.0], b=[7, 7, 9, 7])
    assert column(design, "a").mean() == pytest.approx(0, abs=1e-12)
    assert column(design, "a").std() == pytest.approx(1)
    assert column(design, "b").tolist() == [0, 0, 1, 0]


def test_missing_numbers_become_the_median_and_are_marked():
    design = design_of(y=[0, 1, 0, 1, 1], a=[1.0, 2.0, np.nan, 5.0, 9.0])
    a = column(design, "a")
    assert column(design, "a=missing").tolist() == [0, 0, 1, 0, 0]
    assert a[1] < a[2] < a[3]
    assert a.std() == pytest.approx(1)


def test_levels_are_relative_to_the_most_frequent_and_missing_is_one():
    job = ["baker"] * 5 + ["clerk"] * 6 + [None] * 5
    design = design_of(y=[0, 1] * 8, job=job)
    assert design.names == ("job=baker", "job=missing")
    assert column(design, "job=baker").tolist() == [1] * 5 + [0] * 11
    assert column(design, "job=missing").tolist() == [0] * 11 + [1] * 5


def test_rare_levels_are_pooled():
    land = ["here"] * 9990 + [f"far{k}" for k in range(10)]
    design = design_of(y=[0, 1] * 5000, land=land)
    assert design.names == ("land=(rare)",)
    assert design.x.sum() == 10
    assert "pooled 10 rare levels of land" in design.notes


def test_identifiers_and_constants_are_dropped_with_a_note():
    n = 40
    design = design_of(
        y=[0, 1] * (n // 2),
        a=np.arange(n) ** 2.0,
        key=[f"k{i}" for i in range(n)],
        one=[1] * n,
        empty=[np.nan] * n,
    )
    assert design.names == ("a",)
    for name in ("key", "one", "empty"):
        assert f"dropped {name}, which is constant" in design.notes


def test_redundant_columns_are_dropped_with_a_note():
    a, b = np.random.default_rng(1).normal(size=(2, 50))
    design = design_of(y=[0, 1] * 25, a=a, twice=2 * a + 1e-7 * b, b=b, total=a - b + 3.0)
    assert design.names == ("a", "b")
    assert "dropped what other columns already say: twice, total" in design.notes


def test_no_covariate_is_an_error():
    with pytest.raises(demo.DataError, match="no column is left"):
        design_of(y=[0, 1, 0], a=[1, 1, 1])


def test_classes_of_a_file_without_header(write):
    lines = [
        f"{20 + k % 37}, {('?', 'a', 'b', 'a')[k % 4]}, {'<=' if k % 3 else '>'}50K"
        for k in range(90)
    ]
    table = demo.read_table(write("\n".join(lines)))
    design = demo.make_design(table, "2", "title", "slug")
    assert design.family == "bernoulli"
    assert design.y.sum() == 30
    assert set(design.names) == {"x0", "x1=b", "x1=missing"}


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


@pytest.mark.parametrize("y", [[0, 1, 1, 0], [0, 2, 1, 9], [0.1, 0.2, -0.5, 0.4]])
def test_models_have_a_finite_density(y):
    design = design_of(y=y, a=[1.0, 2.0, 3.0, 5.0])
    model = demo.build_model(design)
    assert all(np.isfinite(v) for v in model.point_logps().values())


def test_errors_are_printed_without_a_traceback(write, capsys, tmp_path):
    path = write("a,b\n1,2\n3,5\n4,4\n")
    code = demo.main(["--data", str(path), "--target", "c", "--out", str(tmp_path / "out")])
    assert code == 2
    assert "error: there is no column 'c'; the columns are 0 'a', 1 'b'" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["--data", "a.csv"], ["--target", "y"], ["--no-header"], ["--rows", "0"]]
)
def test_arguments_that_do_not_fit_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        demo.parse(arguments)
    assert "usage:" in capsys.readouterr().err


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
