"""Printed functions compute what ``Graph.evaluate`` does."""

import gc
import subprocess
import sys
import weakref

from functools import partial

import numpy as np
import pytest

from numba import njit

from amc_pymc.engine import Graph, jit
from amc_pymc.engine.jit import cached_file
from amc_pymc.engine.printer import Printed, Printer, call
from tests.engine.printing import compiled, staged
from tests.engine.random_graphs import Grower
from tests.engine.test_graph import leaves

N = 40


def unit_arrays(rng):
    """Rows (N, 5) and groups (N, 1), local effects (N, 2), parameters (6,), and all leaves' values."""
    values = leaves(rng, N)
    codes = rng.integers(0, 4, N)
    rows = np.column_stack(
        [values["column", 0], values["column", 1], codes, rng.normal(size=(N, 2))]
    )
    local = np.column_stack([values["local", 0], values["local", 1]])
    eta = np.concatenate([[values["entry", 0], values["entry", 1]], rng.normal(size=4)])
    return values, rows, values["group", 0][:, None], local, eta


@pytest.mark.parametrize("seed", range(2))
def test_stages_compute_what_evaluate_does(seed):
    rng = np.random.default_rng(3000 + seed)
    values, rows, groups, local, eta = unit_arrays(rng)
    grower = Grower(rng, values)
    g = grower.graph
    code = g.make("column", value=2, kind="i")
    chosen = g.make("entry", g.make("add", g.const(2), code), value="eta")
    grower.numbers += [
        (chosen, eta[2 + rows[:, 2].astype(int)]),
        (g.make("dot", value=("eta", 2, (3, 4))), rows[:, 3:5] @ eta[2:4]),
        (g.make("dot", value=("eta", 1, (4, 0, 1, 3))), rows[:, [4, 0, 1, 3]] @ eta[1:5]),
        (g.make("eq", code, g.const(2)), rows[:, 2] == 2),
    ]
    grower.grow(70)
    outputs = [n for n, _ in grower.grown[-20:]] + [n for n, _ in grower.truths[-3:]]
    outputs += [g.const(2.5), g.const(-1), g.make("group", value=0)]
    outputs += [g.make("entry", g.const(1), value="eta"), g.make("gt", chosen, g.const(0.0))]
    expected = g.evaluate(
        outputs, row=list(rows.T), group=list(groups.T), local=list(local.T), eta=eta
    )
    got = staged(g, outputs)(rows, groups, local, eta).T
    for a, b in zip(got, expected, strict=True):
        b = np.broadcast_to(np.asarray(b, float), N)
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * (1.0 + np.abs(b).max()))


def test_literals():
    g = Graph()
    values = [np.nan, np.inf, -np.inf, -2.5, 0.1, 3, -3, True, 1e-300]
    got = compiled(g, [g.const(v) for v in values])(np.zeros((1, 1)))[0]
    np.testing.assert_array_equal(got, np.array(values, float))


def test_nothing_is_printed_twice():
    g = Graph()
    e = g.make("exp", g.make("local", value=0))
    printer = Printer(g)
    printer.function("f", ("u", "out"), [g.make("mul", e, e), e])
    assert printer.printed(()).text.count("call double") == 1
    printer = Printer(g)
    printer.function("f", ("shared", "u", "out"), [g.make("mul", e, e)], shared=[e])
    text = printer.printed(()).text
    assert "exp" not in text and "fmul" in text


def test_a_function_without_outputs_compiles():
    printer = Printer(Graph())
    printer.function("f", ("eta", "out"), [])
    assert printer.printed(("f",)).arrays[0][0] != 0


@pytest.mark.parametrize("n", [0, 5, 33])
@pytest.mark.parametrize("padding", [0, 16])
def test_sums_of_rows_leave_out_what_is_beyond(n, padding):
    g = Graph()
    square = g.make("mul", g.make("column", value=0), g.make("column", value=0))
    both = g.make("add", square, g.make("local", value=0))
    printer = Printer(g)
    printer.sum_of_rows("f", ("kept", "stride", "n", "padded", "u", "out"), [both], kept=[square])
    program, _ = printer.printed(("f",)).arrays
    kept, out = np.full((1, 64), np.nan), np.array([1.0])
    kept[0, :n] = np.arange(n)
    _summed(program, kept, n, n + padding, np.array([0.5]), out)
    assert out[0] == pytest.approx(1.0 + np.sum(np.arange(n)) + 0.5 * n, rel=1e-14)


@njit
def _summed(program, kept, n, padded, u, out):
    call(program[0], kept, kept.shape[1], n, padded, u, out)


@pytest.mark.parametrize("columns", [(0,), (2, 0), (4, 3, 2, 1, 0), tuple(range(3, 24))])
def test_products_with_consecutive_entries(columns):
    rng = np.random.default_rng(8)
    g = Graph()
    dot = g.make("dot", value=("eta", 1, columns))
    printer = Printer(g)
    arguments = ("eta", "block", "stride", "n", "out", "out_stride")
    assert printer.function("f", arguments, [g.make("exp", dot), dot]) == 2
    assert printer.function("g", arguments, [g.make("exp", dot)]) == 2
    program, _ = printer.printed(("f", "g")).arrays
    eta, block = rng.normal(size=24), rng.normal(size=(24, 9))
    expected = eta[1 : 1 + len(columns)] @ block[list(columns)]
    for k in range(2):
        out = np.empty((2, 12))
        _of_rows(program, k, eta, block, 7, out)
        np.testing.assert_allclose(out[0, :7], np.exp(expected[:7]))
        np.testing.assert_allclose(out[1, :7], expected[:7])


@njit
def _of_rows(program, k, eta, block, n, out):
    call(program[k], eta, block, block.shape[1], n, out, out.shape[1])


@pytest.mark.slow
def test_libraries_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    g = Graph()
    printer = Printer(g)
    value = g.const(float(id(tmp_path)))
    printer.function(
        "f", ("u", "out"), [g.make("add", g.make("exp", g.make("local", value=0)), value)]
    )
    text = printer.printed(()).text
    file = cached_file(text)
    assert printer.printed(("f",)).arrays[0][0] and file.stat().st_size > 0
    code = """
import sys
from amc_pymc.engine import printer
printer._compiled = None
program, _ = printer.Printed(sys.stdin.read(), ("f",)).arrays
print(program[0] != 0)
"""
    run = partial(subprocess.run, [sys.executable, "-c", code], input=text, text=True)
    assert run(capture_output=True, check=True).stdout.strip() == "True"
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    for broken in (whole, b""):
        file.write_bytes(broken)
        assert "NoneType" in run(capture_output=True, check=False).stderr  # it is compiled anew


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("AMC_PYMC_CACHE", str(blocked))
    g = Graph()
    out = compiled(g, [g.make("add", g.make("local", value=0), g.const(float(id(tmp_path))))])
    assert out([[1.0]])[0, 0] == 1.0 + id(tmp_path)


def test_machine_code_belongs_to_the_source_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_PYMC_CACHE", str(tmp_path))
    text = f'define void @"amc.f"() {{ ret void }} ; {tmp_path}'
    for n, source in enumerate(["one", "other", "one", None], 1):
        monkeypatch.setattr(jit, "_digest", lambda root, source=source: source)
        assert Printed(text, ("f",)).arrays[0][0] != 0
        assert len(list(tmp_path.rglob("*.machine"))) == min(n, 2)


@pytest.mark.slow
def test_code_lives_as_long_as_its_addresses():
    """Models of which nothing is left leave no machine code behind; a view of the addresses is enough."""
    g = Graph()

    def added(k):
        printer = Printer(g)
        printer.function(
            "f", ("u", "out"), [g.make("add", g.make("local", value=0), g.const(0.1 + k))]
        )
        program, _ = printer.printed(("f",)).arrays
        return weakref.ref(program.base.library), program[:1]

    libraries, kept = zip(*map(added, range(80)))
    kept = dict(enumerate(kept[:40]))
    gc.collect()
    assert all(ref() for ref in libraries[:40])
    assert sum(ref() is not None for ref in libraries[40:]) <= 32
    for k, program in kept.items():
        out = np.empty(1)
        _written(program, np.array([1.0]), out)
        assert out[0] == 1.1 + k
    kept.clear()
    del program
    gc.collect()
    assert not any(ref() for ref in libraries[:40])


@njit
def _written(program, u, out):
    call(program[0], u, out)
