"""Dask clusters of two workers."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest

#: What Dask's event loop leaves unfinished when a cluster is closed on a busy machine is not ours.
quiet_close = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


@contextmanager
def client_of_two(**settings):
    """A client of two workers of one thread each, in this process with ``processes=False``."""
    import distributed

    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", **settings}
    cluster = distributed.LocalCluster(**settings)
    client = distributed.Client(cluster, set_as_default=False)
    try:
        yield client
    finally:
        with suppress(AssertionError, OSError, TimeoutError):  # a worker was slow to end
            client.close()
            cluster.close()
