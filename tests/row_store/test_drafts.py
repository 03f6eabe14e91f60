"""Runs that end early leave nothing behind, and disks that are full are told before."""

import os
import signal
import subprocess
import sys
import textwrap

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from row_store.packings import Copies, make_data, make_store

from amc_pymc.row_store import drafts

N = 2_000


@pytest.fixture(params=["nameless", "named"])
def kind(request, monkeypatch):
    """Systems that have files without names, and those that do not."""
    if request.param == "named":
        monkeypatch.setattr(drafts, "_FILES", Path("/no/such/folder"))
    elif not (hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()):
        pytest.skip("this system has no files without names")
    return request.param


class Interrupted(Copies):
    """Stops in the middle of the pass."""

    def __init__(self, error, after=16):
        super().__init__()
        self.error, self.after = error, after

    def pack(self, chunk, first):
        if first >= self.after:
            raise self.error
        return super().pack(chunk, first)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder to keep stores in, and one of temporary files."""
    kept, temporary = tmp_path / "kept", tmp_path / "temporary"
    kept.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return kept, temporary


def left(places):
    return [p for folder in places for p in folder.iterdir()]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad row"), OSError(28, "full")])
@pytest.mark.parametrize("keep", [True, False])
def test_an_interrupted_pass_leaves_nothing(kind, places, error, keep):
    data = make_data(200_000)
    with pytest.raises(type(error)):
        packing = Interrupted(error, 65_536)
        make_store(data, packing, folder=places[0] if keep else None)
    assert packing.sizes  # it had begun
    assert left(places) == []


def test_a_store_without_a_folder_goes_with_its_object(kind, places):
    store = make_store(make_data(N))
    assert store.data.shape == (N, 3)
    names = left(places)
    assert len(names) == (kind == "named")
    handle = store._draft.file.fileno()
    del store
    assert left(places) == []
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def test_a_kept_store_stays(kind, places):
    store = make_store(make_data(N), folder=places[0])
    before = np.array(store.data)
    del store
    assert left(places) == [places[0] / "rows.bin"]
    np.testing.assert_array_equal(make_store(make_data(N), folder=places[0]).data, before)


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
    from amc_pymc.row_store import drafts
    if {kind!r} == "named":
        drafts._FILES = Path("/no/such/folder")
    from row_store.packings import Copies, make_data, make_store

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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["pass", "later"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_killed_process_leaves_nothing(kind, places, number, moment, keep):
    """Or, on other systems, what the next run removes."""
    if keep and moment == "later":
        pytest.skip("that store stays")
    code = textwrap.dedent(KILLED).format(
        paths=[p for p in sys.path if p],
        temporary=str(places[1]),
        kind=kind,
        moment=moment,
        folder=str(places[0]) if keep else None,
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
    if kind == "named":
        assert len(left(places)) == 1
        make_store(make_data(N), folder=places[0] if keep else None)
    assert [p for p in left(places) if p.name != "rows.bin"] == []


def test_files_of_others_are_left_alone(places):
    kept, _ = places
    mine = kept / f"{drafts._mark()}{os.getpid()}-abc.part"
    others = [mine, kept / "data.part", kept / ".amc_pymc-rows-00000000-99999999-abc.part"]
    for path in others:
        path.write_text("")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    dead = kept / f"{drafts._mark()}{int(gone.stdout)}-abc.part"
    dead.write_text("")
    drafts.sweep(kept)
    assert sorted(left(places)) == sorted(others)


def test_a_full_disk_is_told_before_the_pass(places, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 10, 70 * 2**20))
    make_store(make_data(N), folder=places[0])
    packing = Copies()
    with pytest.raises(
        OSError, match=r"takes 7 MiB.*has 70 MiB left\. Pass amc_pymc\.Rows\(folder="
    ):
        make_store(make_data(300_000), packing)
    assert packing.sizes == [16]
    assert left(places) == [places[0] / "rows.bin"]


def test_a_disk_that_fills_up_leaves_nothing(kind, places, monkeypatch):
    from amc_pymc.row_store import writer

    real, calls = writer.write_at, []

    def full(file, offset, data):
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        real(file, offset, data)

    monkeypatch.setattr(writer, "write_at", full)
    with pytest.raises(OSError, match="No space left"):
        make_store(make_data(N), folder=places[0])
    assert left(places) == []


def test_a_store_that_another_run_makes_meanwhile_is_not_replaced(kind, places):
    target = places[0] / "rows.bin"

    class Slow(Copies):
        def pack(self, chunk, first):
            if len(chunk["y"]) > 16:
                target.write_text("theirs")
            return super().pack(chunk, first)

    with pytest.raises(FileExistsError, match=r"another run has made .*rows\.bin meanwhile"):
        make_store(make_data(N), Slow(), folder=places[0])
    assert target.read_text() == "theirs"
    assert left(places) == [target]


def test_a_draft_never_has_the_name_of_a_store(kind, places, monkeypatch):
    """Whoever looks sees nothing, or all of it."""
    from amc_pymc.row_store import writer

    seen = []
    real = writer.write_at

    def watched(file, offset, data):
        real(file, offset, data)
        seen.append((places[0] / "rows.bin").exists())

    monkeypatch.setattr(writer, "write_at", watched)
    make_store(make_data(N), folder=places[0])
    assert len(seen) > 2
    assert not any(seen)
