import os
import time

import pytest


def pytest_runtest_setup(item):
    """Skip what is left once the time given in AMC_TESTS_UNTIL (seconds since the epoch) is over."""
    until = os.environ.get("AMC_TESTS_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("out of time (AMC_TESTS_UNTIL)")
