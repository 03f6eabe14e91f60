"""Memory of a process and all that it has started, as Linux counts it."""

from __future__ import annotations

import os
import re

from pathlib import Path

_KEYS = {"rss": "Rss", "pss": "Pss", "anonymous": "Anonymous"}


class MemoryWatch:
    """Peaks, over time, of the memory of a session of processes, in MB.

    ``rss`` counts pages that processes share once for each of them, ``pss`` once in all; ``anonymous``
    are those that belong to no file, once for each process. Keys that begin with ``sampling_`` are peaks since
    the file `sampling` has come into being.
    """

    def __init__(self, sampling: Path):
        self.sampling = sampling
        self.peaks: dict[str, float] = {}

    def __call__(self, session: int) -> None:
        """Look at all processes of a session."""
        found = memory_of_session(session)
        phases = ["", "sampling_"] if self.sampling.exists() else [""]
        for key in (f"{phase}{kind}_mb" for phase in phases for kind in _KEYS):
            now = found[key.removeprefix("sampling_").removesuffix("_mb")]
            self.peaks[key] = max(self.peaks.get(key, 0.0), now)


def memory_of_session(session: int) -> dict[str, float]:
    """Sums over the processes of a session, in MB; zero where the system does not tell."""
    total = dict.fromkeys(_KEYS, 0.0)
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            if os.getsid(int(pid)) != session:
                continue
            text = Path("/proc", pid, "smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        for key, name in _KEYS.items():
            total[key] += kilobytes(text, name) * 1024 / 1e6
    return total


def kilobytes(text: str, name: str) -> float:
    """An entry of a file of /proc; zero if there is none."""
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0
