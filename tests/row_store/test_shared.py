"""Arrays that processes share: one copy, and nothing is left of it."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap

from pathlib import Path

import numpy as np
import pytest

from amc_pymc.row_store import shared

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()),
    reason="this system has no files in memory without names",
)
SHAPE = (300_000, 8)


def make():
    array = shared.shared_array(SHAPE)
    array.draft()[:] = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    return array


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_pickle_is_a_handle(tmp_path):
    """Whoever opens it, in another process, too, maps the same memory."""
    array = make()
    text = pickle.dumps(array)
    assert len(text) < 1_000
    np.testing.assert_array_equal(pickle.loads(text).data, array.data)
    again = pickle.dumps(pickle.loads(text))  # by whoever got it
    (tmp_path / "pickle").write_bytes(again)
    code = """
        import pickle, sys
        data = pickle.load(open(sys.argv[1], "rb")).data
        def shared():
            return sum(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if "Anon" in l)
        before = shared()
        print(data.sum().hex(), data.shape[0], shared() - before)
    """
    total, rows, grown = run(code, str(tmp_path / "pickle"))
    assert float.fromhex(total) == array.data.sum()
    assert int(rows) == SHAPE[0]
    assert int(grown) < array.n_bytes / 1024 / 10  # KiB of its own: no copy was made


def test_whoever_writes_has_a_copy():
    array = make()
    other = pickle.loads(pickle.dumps(array))
    other.data[3, 2] = -1.0
    array.data[4, 2] = -2.0
    assert array.data[3, 2] == 26.0
    assert other.data[4, 2] == 34.0
    assert pickle.loads(pickle.dumps(array)).data[4, 2] == 34.0


def test_the_memory_goes_with_the_object():
    array = make()
    text, handle, view = pickle.dumps(array), array._handle, array.data[5]
    opened = pickle.loads(text).data
    del array
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)
    assert view[0] == opened[5, 0] == 40.0  # who has it keeps it
    with pytest.raises(ValueError, match=r"cannot be opened.*Make it anew"):
        _ = pickle.loads(text).data
    other = [make() for _ in range(3)]  # one of which has the number of the old file
    with pytest.raises(ValueError, match=r"cannot be opened.*Make it anew"):
        _ = pickle.loads(text).data
    del other


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_nothing(number, tmp_path):
    """Neither it nor a child that has the same memory."""
    code = """
        import os, sys, tempfile, time
        tempfile.tempdir = sys.argv[1]
        import numpy as np
        from amc_pymc.row_store import shared
        array = shared.shared_array((300_000, 8))
        array.draft()[:] = 1.0
        assert array.data.sum() == 2_400_000
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(theirs)
            os.read(ours, 1)  # until the parent is gone
            os._exit(0)
        os.close(ours)
        print(os.getpid(), child, flush=True)
        time.sleep(60)
    """
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        child = int(process.stdout.readline().split()[1])
        assert Path(f"/proc/{child}").exists()
        process.send_signal(number)
        assert process.stdout.read() == b""  # the child, which has it open, too, has ended
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
    now = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    assert not {name for name in now - before if "amc" in name}


def test_small_arrays_and_other_systems(monkeypatch):
    assert shared.shared_array((1_000, 2)) is None
    monkeypatch.setattr(shared, "_FILES", Path("/no/such/folder"))
    assert shared.shared_array(SHAPE) is None
    monkeypatch.undo()

    def refused(name):
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refused)
    assert shared.shared_array(SHAPE) is None
