import functools
import gc
import os
import time

import pytest

# PyMC is imported by the tests: the process that only hands them out does without.


@pytest.fixture(scope="session", autouse=True)
def _interpret_pymc():
    """PyMC's own functions (traces, NUTS, predictions) are called too seldom to be worth compiling.

    Returns the settings before.
    """
    import pytensor

    from amc_pymc.reading.graphs import INTERPRETED

    before = {"mode": pytensor.config.mode, "cxx": pytensor.config.cxx}
    with pytensor.config.change_flags(mode=INTERPRETED, cxx="", traceback__limit=0):
        yield before


@pytest.fixture(scope="session", autouse=True)
def _make_rewriters_once():
    """PyMC makes the same rewriters again for every log density and every initial point."""
    from pymc.initial_point import initial_point_rewrites_db
    from pymc.logprob.rewriting import logprob_rewrites_db

    with pytest.MonkeyPatch.context() as patch:
        for database in (logprob_rewrites_db, initial_point_rewrites_db):
            patch.setattr(database, "query", functools.cache(database.query))
        yield


# Modules, graphs and models are many objects, through which the collector would go again and again.
gc.set_threshold(200_000, 10, 20)


@pytest.fixture(scope="session", autouse=True)
def _collect_seldom():
    """Leave modules and collected tests out of later collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.collect()
    gc.freeze()  # pytest collects ten times more


@pytest.fixture
def compiled_by_pytensor(_interpret_pymc):
    """PyTensor's own settings again, for tests in which PyMC samples tens of thousands of rows by NUTS."""
    import pytensor

    with pytensor.config.change_flags(**_interpret_pymc):
        yield


#: Beginnings of paths whose files run in one worker process, because they share what is made once in a process.
_TOGETHER = ("tests/interoperability/", "tests/reading/test_row")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_power_scheduler(config, log):
    """Give a worker process whole files, and all files that share results."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return next(
                (f for f in _TOGETHER if nodeid.startswith(f)), super()._split_scope(nodeid)
            )

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    """Tests of what is not shipped are slow; racing without a control variate, whose preparation takes long, is allowed."""
    for item in items:
        if item.path.parent.name in ("models", "benchmarks"):
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name in ("samplers", "steps"):
            item.add_marker(
                pytest.mark.filterwarnings("ignore:Racing.*there is no control variate")
            )


def pytest_runtest_setup(item):
    """Skip what is left once the time given in AMC_TESTS_UNTIL (seconds since the epoch) is over."""
    until = os.environ.get("AMC_TESTS_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("out of time (AMC_TESTS_UNTIL)")
