"""Functions of the package that a sampler runs."""

from benchmarks.tall.functions import count


def test_functions_of_the_package_are_counted():
    found = count(n_rows=200, draws=5)
    names = {code.co_name for code in found}
    assert {"prepare", "run"} <= names
    assert all("amc_pymc" in code.co_filename for code in found)
