"""Batches on disk: whole or not at all, of this run or refused."""

import json
import multiprocessing
import os
import time

from pathlib import Path

import numpy as np
import pytest

from amc_pymc.runs import Journal
from amc_pymc.runs import journal as module

FINGERPRINT = {
    "max_simulations": 1_000,
    "epsilon": 0.1,
    "utility": "ess",
    "shapes": {"a": (), "b": (2, 3)},
    "observed": np.arange(20.0),
    "scale": np.array([1.0, np.inf]),
    "none": None,
}
WORDS = [1, 2, 3, 4]


def batch(k, n=10):
    rng = np.random.default_rng(k)
    return {
        "u": rng.random((n, 3)),
        "distance": np.where(rng.random(n) < 0.2, np.inf, rng.random(n)),
        "box": rng.integers(9, size=n),
        "seconds": 0.25 * k,
        "failure_messages": np.array(["μ", "ValueError: no"][: k % 3]),
    }


def begun(path, n=0, fingerprint=FINGERPRINT, words=WORDS):
    log = Journal(path, fingerprint)
    log.begin(words)
    for k in range(len(log), n):
        log.append(batch(k))
    return log


def assert_batches(found, n):
    assert len(found) == n
    for k, arrays in enumerate(found):
        assert arrays.keys() == batch(k).keys()
        for name, value in batch(k).items():
            np.testing.assert_array_equal(arrays[name], value)
            assert arrays[name].dtype.kind == np.asarray(value).dtype.kind


def test_batches_come_back_in_order(tmp_path):
    begun(tmp_path / "run", 12)
    again = Journal(str(tmp_path / "run"), FINGERPRINT)
    assert len(again) == 12
    assert again.begin([9]) == again.words == WORDS
    assert_batches(list(again.batches()), 12)
    again.append(batch(12))
    assert_batches(list(again.batches()), 13)
    assert_batches(list(Journal(tmp_path / "run", FINGERPRINT, WORDS).batches()), 13)


def test_nothing_is_written_twice(tmp_path):
    log = begun(tmp_path / "run", 2)
    before = {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in (tmp_path / "run").iterdir()}
    log.append(batch(2))
    Journal(tmp_path / "run", FINGERPRINT).begin([5])
    after = {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in (tmp_path / "run").iterdir()}
    assert before.items() < after.items()
    assert [f.name for f in after.keys() - before.keys()] == ["000002.npz"]


def test_without_a_path_nothing_is_kept():
    log = Journal(None, FINGERPRINT)
    assert log.begin(WORDS) == WORDS
    log.append(batch(0))
    assert list(log.batches()) == [] and len(log) == 0


def test_looking_writes_nothing(tmp_path):
    Journal(tmp_path / "run", FINGERPRINT)
    assert list(tmp_path.iterdir()) == []


# --- killed runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(12))
@pytest.mark.parametrize("n", [0, 2])
def test_a_run_killed_at_any_step_goes_on(after, n, tmp_path, monkeypatch):
    """Stop at each call to the system in turn."""
    path = tmp_path / "run"
    if n:
        begun(path, n)

    class Killed(BaseException):
        pass

    steps = iter(range(after))

    def step(function):
        def call(*args, **kwargs):
            if next(steps, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", step(os.replace))
        patch.setattr(module.os, "fsync", step(os.fsync))
        patch.setattr(np, "savez", step(np.savez))
        patch.setattr(Path, "mkdir", step(Path.mkdir))
        try:
            begun(path, n + 1)
        except Killed:
            pass
    resumed = Journal(path, FINGERPRINT)
    assert len(resumed) in (n, n + 1)
    assert_batches(list(resumed.batches()), len(resumed))
    assert_batches(list(begun(path, n + 2).batches()), n + 2)


def write_without_end(path):
    log = Journal(path, {"n": 3})
    log.begin([1])
    while True:
        log.append({"u": np.full(20_000, len(log))})


@pytest.mark.skipif(os.name != "posix", reason="fork")
def test_a_killed_process(tmp_path):
    path, seen = tmp_path / "run", 0
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(
            target=write_without_end, args=(path,)
        )
        process.start()
        try:
            until = time.monotonic() + 100.0
            while len(list(path.glob("*.npz"))) < seen + 10:
                assert process.is_alive()
                assert time.monotonic() < until
                time.sleep(0.001)
        finally:
            process.kill()
            process.join()
        found = list(Journal(path, {"n": 3}).batches())
        assert len(found) >= seen + 10
        assert all((arrays["u"] == k).all() for k, arrays in enumerate(found))
        seen = len(found)


def test_a_run_killed_before_its_first_batch_does_not_stand_in_the_way(tmp_path):
    begun(tmp_path / "run")
    other = Journal(tmp_path / "run", {"epsilon": 3.0}, [7])
    assert other.begin([7]) == [7]
    other.append(batch(0))
    assert Journal(tmp_path / "run", {"epsilon": 3.0}).begin([8]) == [7]
    with pytest.raises(ValueError, match="another run"):
        Journal(tmp_path / "run", FINGERPRINT)


# --- other runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"max_simulations": 2_000},
        {"epsilon": 0.1000001},
        {"epsilon": np.nan},
        {"utility": None},
        {"shapes": {"a": (), "b": (3, 2)}},
        {"observed": np.arange(20.0) + 1e-12},
        {"observed": np.arange(20)},
        {"observed": np.arange(20.0).reshape(4, 5)},
        {"scale": np.array([1.0, 2.0])},
        {"more": 1},
        {"more": None},
    ],
)
def test_what_differs_is_named(change, tmp_path):
    begun(tmp_path / "run", 1)
    before = {f: f.read_bytes() for f in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError) as caught:
        Journal(tmp_path / "run", FINGERPRINT | change)
    (name,) = change
    message = f"is of another run: {name} changed; delete the folder or name another one."
    assert str(caught.value) == f"checkpoint={str(tmp_path / 'run')!r} {message}"
    assert {f: f.read_bytes() for f in (tmp_path / "run").iterdir()} == before


def test_an_equal_fingerprint_in_other_words(tmp_path):
    begun(tmp_path / "run", 1)
    equal = {
        "max_simulations": np.int64(1_000),
        "epsilon": np.float64(0.1),
        "shapes": {"a": [], "b": [2, 3]},
        "observed": np.arange(40.0)[::2] / 2.0,
    }
    assert len(Journal(tmp_path / "run", FINGERPRINT | equal)) == 1


def test_another_seed(tmp_path):
    begun(tmp_path / "run", 1)
    assert len(Journal(tmp_path / "run", FINGERPRINT, np.array(WORDS))) == 1
    with pytest.raises(ValueError, match="is of another run: random_seed changed"):
        Journal(tmp_path / "run", FINGERPRINT, [1, 2, 3, 5])


# --- what is no checkpoint ------------------------------------------------------------------------


def test_bad_paths(tmp_path):
    with pytest.raises(TypeError, match="checkpoint must be a path, got 3"):
        Journal(3, {})
    with pytest.raises(ValueError, match=r"checkpoint=.*missing.*in a folder that does not exist"):
        Journal(tmp_path / "missing" / "run", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"checkpoint=.*file' is no checkpoint.*NotADirectory"):
        Journal(tmp_path / "file", {})
    with pytest.raises(ValueError, match=r"is no checkpoint: run.json.*No such file"):
        Journal(tmp_path, {})
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    "header",
    ["", "no json", "[]", "{}", '{"version": "0.1"}', '{"words": [3], "fingerprint": {}}',
     '{"version": "0.1", "words": 3, "fingerprint": {}}',
     '{"version": "0.1", "words": [3], "fingerprint": []}'],
)  # fmt: skip
def test_bad_headers(header, tmp_path):
    begun(tmp_path / "run", 1)
    (tmp_path / "run" / "run.json").write_text(header)
    with pytest.raises(ValueError, match=r"checkpoint=.*is no checkpoint: run.json"):
        Journal(tmp_path / "run", FINGERPRINT)


def test_two_runs_in_one_folder(tmp_path):
    first, second = begun(tmp_path / "run", 1), begun(tmp_path / "run", 1)
    first.append(batch(1))
    with pytest.raises(ValueError, match="another run is writing to this folder"):
        second.append(batch(1))


def test_another_version_is_refused(tmp_path):
    begun(tmp_path / "run", 1)
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.0.9"}))
    message = r"is of another run: the version of amc_pymc \(from 0.0.9 to .*\) changed"
    with pytest.raises(ValueError, match=message):
        Journal(tmp_path / "run", FINGERPRINT)


def test_batches_made_from_something_else_are_refused(tmp_path):
    log, points = begun(tmp_path / "run"), np.random.default_rng(1).random((2, 5, 3))
    for u in points:
        log.append({"distance": u.sum(axis=1)}, u)
    again = Journal(tmp_path / "run", FINGERPRINT)
    np.testing.assert_array_equal(again.recall(points[0])["distance"], points[0].sum(axis=1))
    for other in (points[0], points[1] + 1e-5, points[1].T, None):
        with pytest.raises(ValueError, match=r"run': 000001.npz was made from other draws"):
            again.recall(other)
    assert again.recall(points[1] * (1.0 + 1e-15)).keys() == {"distance"}  # another machine
    again.append({"distance": np.zeros(1)})
    assert again.recall(points[1]) is None


def test_damaged_and_missing_batches(tmp_path):
    log = begun(tmp_path / "run", 3)
    file = tmp_path / "run" / "000001.npz"
    whole = file.read_bytes()
    objects = tmp_path / "objects.npz"
    np.savez(objects, u=np.array([{}], dtype=object))
    for content in (b"", b"nothing", whole[: len(whole) // 2], objects.read_bytes()):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"000001.npz cannot be read.*delete it and all files"):
            list(log.batches())
    file.unlink()
    with pytest.raises(ValueError, match=r"000001.npz is missing, but there are later ones"):
        Journal(tmp_path / "run", FINGERPRINT)
