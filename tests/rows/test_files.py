"""Runs that end early leave nothing behind, full disks are told before, processes share arrays."""

import os
import pickle
import subprocess
import sys
import textwrap

from pathlib import Path

import numpy as np
import pytest

from rows.packings import Copies, make_data, make_store

from amc_pymc.rows import InMemory, files

N = 2_000


@pytest.fixture(params=["nameless", "named"])
def kind(request, monkeypatch):
    """Systems that have files without names, and those that do not."""
    if request.param == "named":
        monkeypatch.setattr(files, "_FILES", Path("/no/such/folder"))
    elif not (hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()):
        pytest.skip("this system has no files without names")
    return request.param


class Interrupted(Copies):
    """Stops in the middle of the pass."""

    def __init__(self, error, after):
        super().__init__()
        self.error, self.after = error, after

    def pack(self, chunk, first):
        if first >= self.after:
            raise self.error
        return super().pack(chunk, first)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder on another disk, and that of temporary files."""
    disk, temporary = tmp_path / "disk", tmp_path / "temporary"
    disk.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return disk, temporary


def left(places):
    return sorted(p for folder in places for p in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad row")])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_an_interrupted_pass_leaves_nothing(kind, places, error, elsewhere):
    data = make_data(200_000)
    with pytest.raises(type(error)):
        packing = Interrupted(error, 65_536)
        make_store(data, packing, folder=places[0] if elsewhere else None)
    assert packing.sizes  # it had begun
    assert left(places) == []


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_store_goes_with_its_object(kind, places, elsewhere):
    store = make_store(make_data(N), folder=places[0] if elsewhere else None)
    assert store.data.shape == (N, 3)
    names = left(places)
    assert [p.parent for p in names] == [places[not elsewhere]] * (kind == "named")
    handle = store._draft.file.fileno()
    del store
    assert left(places) == []
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def test_a_forked_child_removes_nothing(kind, places):
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    store = make_store(make_data(N))
    child = os.fork()
    if child == 0:
        del store
        os._exit(0)
    os.waitpid(child, 0)
    assert store.data.sum() != 0.0


KILLED = """
    import sys, os, time
    sys.path[:0] = {paths!r}
    from pathlib import Path
    import tempfile
    tempfile.tempdir = {temporary!r}
    from amc_pymc.rows import files
    if {kind!r} == "named":
        files._FILES = Path("/no/such/folder")
    from rows.packings import Copies, make_data, make_store

    class Waiting(Copies):
        def pack(self, chunk, first):
            if {moment!r} == "pass" and first:
                print("ready", flush=True)
                time.sleep(60)
            return super().pack(chunk, first)

    store = make_store(make_data(200_000), Waiting(), folder={folder!r})
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("moment", ["pass", "later"])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_killed_process_leaves_nothing(kind, places, moment, elsewhere):
    """Or, on other systems, one file."""
    code = textwrap.dedent(KILLED).format(
        paths=[p for p in sys.path if p],
        temporary=str(places[1]),
        kind=kind,
        moment=moment,
        folder=str(places[0]) if elsewhere else None,
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    assert [p.suffix for p in left(places)] == [".part"] * (kind == "named")


def test_a_full_disk_is_told_before_the_pass(kind, places):
    """Here the limit of the size of files is reached."""
    resource = pytest.importorskip("resource")
    before, packing = resource.getrlimit(resource.RLIMIT_FSIZE), Copies()
    data = make_data(200_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(
            OSError, match=r"no room for 5 MiB: .*too large.*amc_pymc\.Rows\(folder="
        ):
            make_store(data, packing, folder=places[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert packing.sizes == []
    assert left(places) == []


# --- arrays in shared memory ----------------------------------------------------------------------

in_memory = pytest.mark.skipif(
    not (hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()),
    reason="this system has no files in memory without names",
)
SHAPE = (300_000, 8)


def numbers(out):
    out[:] = np.arange(out.size).reshape(out.shape)


def make():
    return InMemory(SHAPE, numbers)


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@in_memory
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
    assert int(grown) < array.data.nbytes / 1024 / 10  # KiB of its own: no copy was made


@in_memory
def test_the_memory_goes_with_the_object():
    array = make()
    text, handle, view = pickle.dumps(array), array._draft.file.fileno(), array.data[5]
    opened = pickle.loads(text).data
    del array
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)
    assert view[0] == opened[5, 0] == 40.0  # who has it keeps it
    with pytest.raises(ValueError, match=r"cannot be opened.*make it anew"):
        _ = pickle.loads(text).data
    other = [make() for _ in range(3)]  # one of which has the number of the old file
    with pytest.raises(ValueError, match=r"cannot be opened.*make it anew"):
        _ = pickle.loads(text).data
    del other


@in_memory
def test_a_killed_process_leaves_no_shared_memory(tmp_path):
    """Neither it nor a child that has the same memory."""
    code = """
        import os, sys, tempfile, time
        tempfile.tempdir = sys.argv[1]
        import numpy as np
        from amc_pymc.rows import InMemory
        array = InMemory((300_000, 8), lambda out: out.fill(1.0))
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
        process.kill()
        assert process.stdout.read() == b""  # the child, which has it open, too, has ended
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
    now = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    assert not {name for name in now - before if "amc" in name}


@in_memory
def test_small_arrays_and_other_systems(monkeypatch):
    small = InMemory((1_000, 2), numbers)
    assert not small.path
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(small)).data, small.data)
    monkeypatch.setattr(files, "_FILES", Path("/no/such/folder"))
    assert not make().path
    monkeypatch.undo()

    def refused(name):
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refused)
    assert not make().path
