"""Products through cuBLASLt: a library in its place multiplies on the host, by the descriptions that it gets."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_cublaslt import Attribute, Compute, FakeLt, Types

from astitch.graph.ir import ArrayType, DotAttrs, DType, Node
from astitch.graph.matmul import canonical_dot, choose_product_types
from astitch.graph.reference import eval_node
from astitch.library.cublaslt import (
    ALIGNMENT_BYTES,
    CANDIDATES,
    PLAIN,
    Addresses,
    Bindings,
    Finish,
    Matmul,
    NoAlgorithm,
    Product,
    ProductCache,
    find_bindings,
)
from astitch.program.steps import Activation

STREAM = 7


def make_matmul(
    lt: FakeLt,
    attrs: DotAttrs,
    lhs: Any,
    rhs: Any,
    cache: Any,
    times: Any = (),
    finish: Finish = PLAIN,
) -> Matmul:
    """times: what each candidate takes, in turn."""
    dtype = DType.of(lhs.dtype)
    left, right = (ArrayType(dtype, x.shape) for x in (lhs, rhs))
    types = choose_product_types(attrs, dtype, dtype, dtype)
    assert types is not None
    turns = iter(times)

    def time_launch(launch: Any, stream: int) -> float:
        assert stream == STREAM
        launch(stream)
        return float(next(turns))

    product = Product(canonical_dot(attrs, left, right), types, "A GPU", finish)
    return Matmul(Bindings(lt, Types, Compute), product, time_launch, cache)


def call(matmul: Matmul, lhs: np.ndarray, rhs: np.ndarray, result: np.ndarray) -> None:
    matmul.launch(Addresses(lhs.ctypes.data, rhs.ctypes.data, result.ctypes.data, 0), STREAM)


@pytest.fixture
def cache(tmp_path: Path) -> ProductCache:
    return ProductCache(tmp_path / "products", 1 << 20, ".json")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("attrs", "lhs", "rhs", "shape"),
    [
        (DotAttrs((1,), (0,)), (5, 7), (7, 3), (5, 3)),
        (DotAttrs((1,), (1,)), (5, 7), (3, 7), (5, 3)),
        (DotAttrs((0,), (0,)), (7, 5), (7, 3), (5, 3)),
        (DotAttrs((0,), (1,)), (7, 5), (3, 7), (5, 3)),
        (DotAttrs((2,), (2,), (1,), (1,)), (5, 4, 8), (6, 4, 8), (4, 5, 6)),
        (DotAttrs((1,), (0,)), (5, 7), (7,), (5,)),
    ],
    ids=["nn", "nt", "tn", "tt", "heads", "vector"],
)
def test_products(dtype: Any, attrs: DotAttrs, lhs: Any, rhs: Any, shape: Any, cache: Any) -> None:
    a, b = (np.arange(np.prod(s), dtype=dtype).reshape(s) % 7 for s in (lhs, rhs))
    result = np.full(shape, np.nan, dtype)
    call(make_matmul(FakeLt(1), attrs, a, b, cache), a, b, result)
    node = Node("dot", "dot", ArrayType(DType.of(dtype), shape), ("lhs", "rhs"), attrs)
    np.testing.assert_array_equal(result, eval_node(node, [a, b])[0])


X, W = np.ones((4, 6), np.float32), np.ones((6, 2), np.float32)
ATTRS = DotAttrs((1,), (0,))


def test_the_fastest_is_taken_and_kept(cache: Any) -> None:
    lt, result = FakeLt(), np.empty((4, 2), np.float32)
    first = make_matmul(lt, ATTRS, X, W, cache, (9.0, 5.0, 7.0))
    assert first.workspace_bytes == 200
    call(first, X, W, result)
    call(first, X, W, result)
    assert lt.launched == [10, 11, 12, 11, 11]  # each once, then the winner
    assert first.workspace_bytes == 100
    np.testing.assert_array_equal(result, X @ W)

    later = FakeLt()  # another process
    again = make_matmul(later, ATTRS, X, W, cache)
    call(again, X, W, result)
    assert later.launched == [11]
    assert again.workspace_bytes == 64


def test_the_first_stays_where_others_win_little(cache: Any) -> None:
    lt, result = FakeLt(), np.empty((4, 2), np.float32)
    matmul = make_matmul(lt, ATTRS, X, W, cache, (9.0, 8.99, 8.95))
    call(matmul, X, W, result)
    assert lt.launched[-1] == 10


def test_algorithms_that_fail_are_left_out(cache: Any) -> None:
    lt, result = FakeLt(), np.empty((4, 2), np.float32)
    lt.broken = {10}
    matmul = make_matmul(lt, ATTRS, X, W, cache, (8.0, 7.0))
    call(matmul, X, W, result)
    assert lt.launched == [11, 12, 12]


def test_where_none_runs_nothing_is_kept(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lt, result = FakeLt(), np.empty((4, 2), np.float32)
    lt.broken = {10, 11, 12}
    matmul = make_matmul(lt, ATTRS, X, W, cache)
    with pytest.raises(NoAlgorithm, match="none of those"):
        call(matmul, X, W, result)
    monkeypatch.setattr(Bindings, "matmul_address", 77)
    assert matmul.find_call() is None
    later = FakeLt()
    matmul = make_matmul(later, ATTRS, X, W, cache, (9.0, 5.0, 7.0))
    assert matmul.find_call() is None, "nothing is chosen yet"
    call(matmul, X, W, result)
    assert later.launched[-1] == 11
    assert matmul.find_call() is not None


def test_what_another_kept_meanwhile_is_taken(cache: Any) -> None:
    first, second = FakeLt(), FakeLt()
    result = np.empty((4, 2), np.float32)
    one = make_matmul(first, ATTRS, X, W, cache, (9.0, 5.0, 7.0))
    other = make_matmul(second, ATTRS, X, W, cache)
    call(one, X, W, result)
    call(other, X, W, result)
    assert second.launched == [11]


def test_what_the_library_takes_no_longer_is_asked_anew(cache: Any) -> None:
    result = np.empty((4, 2), np.float32)
    call(make_matmul(FakeLt(), ATTRS, X, W, cache, (9.0, 5.0, 7.0)), X, W, result)
    lt = FakeLt()
    lt.broken = {11}
    call(make_matmul(lt, ATTRS, X, W, cache, (6.0, 7.0)), X, W, result)
    assert lt.launched == [10, 12, 10]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": "astitch product 2"}'])
def test_damaged_entries_do_not_exist(text: bytes, cache: Any) -> None:
    matmul = make_matmul(FakeLt(), ATTRS, X, W, cache)
    cache.store_bytes(matmul._key, text)
    lt, result = FakeLt(), np.empty((4, 2), np.float32)
    call(make_matmul(lt, ATTRS, X, W, cache, (9.0, 5.0, 7.0)), X, W, result)
    assert lt.launched[-1] == 11


def test_no_algorithm(cache: Any) -> None:
    with pytest.raises(NoAlgorithm):
        make_matmul(FakeLt(0), ATTRS, X, W, cache)


def test_only_algorithms_of_one_order_are_asked_for(cache: Any) -> None:
    lt = FakeLt(CANDIDATES + 4)
    make_matmul(lt, ATTRS, X, W, cache)
    assert lt.asked[Attribute.REDUCTION_SCHEME_MASK] == 6  # not in place
    sides = [lt.asked[Attribute[f"MIN_ALIGNMENT_{x}_BYTES"]] for x in "ABCD"]
    assert sides == [ALIGNMENT_BYTES] * 4


def test_products_that_differ_have_entries_of_their_own(cache: Any) -> None:
    keys = set()
    for attrs, shapes in itertools.product(
        (ATTRS, DotAttrs((1,), (0,), precision=("HIGHEST", "DEFAULT"))), ((4, 6), (8, 6))
    ):
        keys.add(make_matmul(FakeLt(), attrs, np.ones(shapes, np.float32), W, cache)._key)
    assert len(keys) == 4


# ---- what is done to a sum before it is written ----------------------------------------------------------------

FINISHES = [
    Finish(residual, bias, activation)
    for residual, bias, activation in itertools.product((False, True), (False, True), Activation)
]


@pytest.mark.parametrize("finish", FINISHES, ids=str)
def test_finishes(finish: Finish, cache: Any) -> None:
    rng = np.random.default_rng(0)
    x, w, residual, bias = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 2), (4, 2), (2,))
    )
    result = np.full((4, 2), np.nan, np.float32)
    matmul = make_matmul(FakeLt(1), ATTRS, x, w, cache, finish=finish)
    assert matmul.is_settled
    matmul.launch(
        Addresses(
            x.ctypes.data,
            w.ctypes.data,
            result.ctypes.data,
            0,
            residual.ctypes.data if finish.residual else 0,
            bias.ctypes.data if finish.bias else 0,
        ),
        STREAM,
    )
    want = x @ w + finish.residual * residual + finish.bias * bias
    if finish.activation is Activation.RELU:
        want = np.maximum(want, 0)
    if finish.activation is Activation.GELU:
        want = 0.5 * want * (1 + np.tanh(np.sqrt(2 / np.pi) * (want + 0.044715 * want**3)))
    np.testing.assert_allclose(result, want, rtol=1e-6)


def test_each_finish_has_an_entry_of_its_own(cache: Any) -> None:
    keys = {make_matmul(FakeLt(), ATTRS, X, W, cache, finish=f)._key for f in FINISHES}
    assert len(keys) == len(FINISHES) == 12


def test_parts_of_sums_are_not_rounded_before_they_are_finished(cache: Any) -> None:
    lt = FakeLt()
    make_matmul(lt, ATTRS, X, W, cache, finish=Finish(bias=True))
    assert lt.asked[Attribute.REDUCTION_SCHEME_MASK] == 2  # in the type of the sum


@pytest.mark.parametrize(("apart_us", "joined"), [(6.0, True), (4.0, False)])
def test_the_faster_of_one_step_and_two_is_kept(apart_us: float, joined: bool, cache: Any) -> None:
    residual, result = np.ones((4, 2), np.float32), np.empty((4, 2), np.float32)
    addresses = Addresses(X.ctypes.data, W.ctypes.data, result.ctypes.data, 0, residual.ctypes.data)
    finish, streams = Finish(residual=True), list[int]()

    def make(lt: FakeLt, *times: float) -> Matmul:
        return make_matmul(lt, ATTRS, X, W, cache, times, finish)

    lt = FakeLt()
    matmul = make(lt, 9.0, 5.0, 7.0, apart_us)
    if joined:
        matmul.launch(addresses, STREAM, streams.append)
        assert lt.launched[-1] == 11
        assert make(FakeLt()).is_settled
    else:
        for _ in range(2):
            with pytest.raises(NoAlgorithm):
                matmul.launch(addresses, STREAM, streams.append)
        assert lt.launched == [10, 11, 12]
        with pytest.raises(NoAlgorithm, match="faster apart"):
            make(FakeLt())  # a later process
    assert streams == [STREAM]


def test_two_steps_that_cannot_be_timed_are_no_rival(cache: Any) -> None:
    result = np.empty((4, 2), np.float32)
    addresses = Addresses(X.ctypes.data, W.ctypes.data, result.ctypes.data, 0)

    def fail(stream: int) -> None:
        raise RuntimeError("cudaErrorStreamCaptureInvalidated")

    lt = FakeLt()
    times = (9.0, 5.0, 7.0)
    matmul = make_matmul(lt, ATTRS, X, W, cache, times, Finish(activation=Activation.RELU))
    matmul.launch(addresses, STREAM, fail)
    assert lt.launched[-1] == 11


def test_bindings_that_do_not_work_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_bindings.__wrapped__
    monkeypatch.setitem(sys.modules, "nvmath", None)  # not installed
    assert find(0) is None
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))  # without what it depends on
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
    with pytest.warns(RuntimeWarning, match="cuBLASLt does not work: .*; cuBLAS multiplies"):
        assert find(0) is None


def test_functions_that_are_another_library_s_are_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TensorFlow's give an error's number where cuBLASLt gives its version, or the address of a text."""
    lt = FakeLt()
    monkeypatch.setattr(lt, "get_version", lambda: 14)
    monkeypatch.setattr(lt, "create", lambda: pytest.fail("a handle was asked for"))
    with pytest.raises(RuntimeError, match="said to be 14: another library, TensorFlow's say"):
        Bindings(lt, None, None)
