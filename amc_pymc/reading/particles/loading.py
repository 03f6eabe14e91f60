"""Densities that arrive from another process are made once, however often they are sent."""

from __future__ import annotations

import threading

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["once_per_process"]

_LOADED: OrderedDict[tuple, Any] = OrderedDict()
_MOST_LOADED = 4
_LOADING = threading.RLock()


def once_per_process(token: tuple, make: Callable[[], Any]) -> Any:
    """Return the densities that this process already has, or make them; the last four are kept."""
    with _LOADING:
        if token not in _LOADED:
            _LOADED[token] = make()
            while len(_LOADED) > _MOST_LOADED:
                _LOADED.popitem(last=False)
        _LOADED.move_to_end(token)
        return _LOADED[token]
