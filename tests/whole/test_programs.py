"""The corpus: stored, fresh, reproducible; a module means to astitch what it means to XLA."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from tests import programs
from tests.hlo_runner import run_xla
from tests.programs import BF16, F32, PROGRAMS, S8, Program, Tolerance, assert_matches, load

WRITTEN_BY = "0.10."


def test_the_corpus_is_complete_and_small():
    stored = {path.name for path in programs.CORPUS.iterdir()}
    assert stored == {f"{name}.hlo.pb.gz" for name in PROGRAMS}
    assert sum(path.stat().st_size for path in programs.CORPUS.iterdir()) < 500_000
    assert len(PROGRAMS) >= 45


@pytest.mark.skipif(not jax.__version__.startswith(WRITTEN_BY), reason="HLO of another JAX version")
def test_stored_modules_are_what_the_functions_lower_to():
    """A program that changes must be written again: python -m tests.programs --write."""
    stale = [
        name
        for name, prog in PROGRAMS.items()
        if programs.show_hlo(prog.lower()) != programs.show_hlo(load(name))
    ]
    assert stale == []


def test_stored_modules_hold_no_absolute_path():
    found = {path for name in PROGRAMS for path in re.findall(rb"[\w./-]+\.py", load(name))}
    assert any(path.endswith(b"tests/programs.py") for path in found)
    # A byte of the protobuf may stand before the path and look like a letter.
    assert [p for p in found if not re.fullmatch(rb".?(tests|astitch)/\w+\.py", p)] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_reference_agrees_with_xla(name: str):
    prog = PROGRAMS[name]
    proto = load(name)
    graph = check_graph(import_hlo(proto))
    assert [(graph[p].shape, graph[p].dtype.numpy) for p in graph.parameters] == [
        (arg.shape, arg.dtype) for arg in prog.args
    ]
    inputs = prog.make_inputs(seed=0)
    with np.errstate(all="ignore"):
        got = run_graph(graph, inputs)
    assert_matches(prog, got, run_xla(proto, inputs))


@pytest.mark.parametrize("name", ["astitch_golden", "bert_layer", "dynamic_slices", "softmax_f64"])
def test_stored_module_computes_its_function(name: str):
    prog = PROGRAMS[name]
    inputs = prog.make_inputs(seed=3)
    assert_matches(prog, prog.run_jax(inputs), run_xla(load(name), inputs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_are_reproducible_and_as_declared(name: str):
    prog = PROGRAMS[name]
    first, again, other = prog.make_inputs(5), prog.make_inputs(5), prog.make_inputs(6)
    for arg, array in zip(prog.args, first, strict=True):
        assert (array.shape, array.dtype) == (arg.shape, arg.dtype)
        assert array.flags.c_contiguous
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    if sum(a.size for a in first) > 8:
        assert [a.tobytes() for a in first] != [a.tobytes() for a in other]


# ---- the comparison must be able to fail ---------------------------------------------------------


def _compare(got: np.ndarray, want: np.ndarray, tolerance: Tolerance | None = None) -> None:
    prog = Program("p", lambda: None, (), tolerance or Tolerance(), "")
    assert_matches(prog, [got], [want])


def test_comparison_names_the_first_wrong_element():
    want = np.ones((2, 3), np.float32)
    got = want.copy()
    got[1, 2] = 1.5
    with pytest.raises(AssertionError) as failure:
        _compare(got, want)
    assert str(failure.value) == (
        "p, result 0 (float32[2, 3]): 1 of 6 differ, first at (1, 2): got 1.5, want 1.0"
    )


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, -np.inf], [1.0, np.inf]),
        ([1.0, 3.0e38], [1.0, np.inf]),
        ([1.0001, 2.0], [1.0, 2.0]),
        ([1.0, np.inf], [1.0, 2.0]),
    ],
)
def test_comparison_refuses(got: list[float], want: list[float]):
    with pytest.raises(AssertionError, match="1 of 2 differ"):
        _compare(np.array(got, F32), np.array(want, F32))


def test_comparison_allows_rounding_and_equal_specials():
    want = np.array([np.nan, np.inf, -np.inf, 1.0, 1e-12, 1000.0])
    _compare((want * (1 + 1e-6)).astype(F32), want.astype(F32))
    _compare((want * (1 + 2**-7)).astype(BF16), want.astype(BF16))


def test_comparison_of_integers_is_exact_unless_steps_are_allowed():
    want, got = np.array([127, -127, 3], S8), np.array([126, -127, 3], S8)
    _compare(got, want, Tolerance(steps=1))
    with pytest.raises(AssertionError, match="got 126, want 127"):
        _compare(got, want)


def test_comparison_refuses_another_shape_dtype_or_count():
    x = np.zeros((2, 2), F32)
    with pytest.raises(AssertionError, match=r"got float32\[4\]"):
        _compare(x.reshape(4), x)
    with pytest.raises(AssertionError, match="got bfloat16"):
        _compare(x.astype(BF16), x)
    prog = PROGRAMS["softmax_last"]
    with pytest.raises(AssertionError, match="2 results, 1 expected"):
        assert_matches(prog, [x, x], [x])
