"""Dask clusters of two workers."""

from __future__ import annotations

from contextlib import contextmanager


@contextmanager
def client_of_two(**settings):
    """A client of two workers of one thread each, in this process with ``processes=False``."""
    import distributed

    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", **settings}
    with (
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
