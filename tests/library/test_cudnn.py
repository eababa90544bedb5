"""Convolutions through cuDNN: a library in its place convolves on the host, by the descriptions that it gets."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from convolve import view_copied
from fake_cudnn import FakeCudnn, Note

from astitch.graph.convolution import (
    CanonicalConvolution,
    ConvolutionTypes,
    Tensor,
    canonical_convolution,
    choose_convolution_types,
)
from astitch.graph.ir import ArrayType, ConvolutionAttrs, DType, Node, WindowDimension
from astitch.graph.reference import eval_node
from astitch.library import cudnn
from astitch.library.cudnn import (
    CANDIDATES,
    WORKSPACE_BYTES,
    Bindings,
    Convolution,
    ConvolutionCache,
    NoCudnnPlan,
    Problem,
    find_bindings,
)

STREAM = 7

SAME = WindowDimension(3, padding_low=1, padding_high=1)
LAYER = ConvolutionAttrs(
    (SAME, SAME), input_batch=0, input_feature=3, input_spatial=(1, 2),
    kernel_input_feature=2, kernel_output_feature=3, kernel_spatial=(0, 1),
    output_batch=0, output_feature=3, output_spatial=(1, 2),
)  # fmt: skip
SHAPES = (2, 6, 5, 4), (3, 3, 4, 8), (2, 6, 5, 8)


def flat(address: int, count: int, dtype: Any) -> np.ndarray:
    data = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(data, dtype)


class Call:
    """A convolution of whole numbers, on memory of its own.  times: what each candidate takes, in turn."""

    def __init__(
        self,
        cudnn: FakeCudnn,
        cache: ConvolutionCache,
        times: Any = (),
        *,
        attrs: ConvolutionAttrs = LAYER,
        shapes: Any = SHAPES,
        dtype: DType = DType.F32,
    ) -> None:
        rng = np.random.default_rng(1)
        self.attrs, self.type = attrs, ArrayType(dtype, shapes[2])
        self.arrays = [rng.integers(-3, 4, s).astype(dtype.numpy) for s in shapes[:2]]
        self.result = np.full(shapes[2], np.nan, dtype.numpy)
        types = [ArrayType(dtype, s) for s in shapes]
        conv = canonical_convolution(attrs, *types)
        assert isinstance(conv, CanonicalConvolution)
        found = choose_convolution_types(attrs, dtype, dtype, dtype)
        assert isinstance(found, ConvolutionTypes)
        turns = iter(times)
        self.copies: list[bool] = []

        def time_launch(launch: Any, stream: int) -> float:
            assert stream == STREAM
            launch(stream)
            return float(next(turns))

        def copy(tensor: Tensor, lies: int, packed: int, back: bool, stream: int) -> None:
            assert stream == STREAM
            self.copies.append(back)
            array = view_copied(flat(lies, tensor.size, dtype.numpy), tensor)
            room = flat(packed, tensor.size, dtype.numpy).reshape(array.shape)
            if back:
                array[...] = room
            else:
                room[...] = array

        bindings = Bindings(cudnn, cudnn.handle)
        self.cudnn = cudnn
        self.convolution = Convolution(
            bindings, Problem(conv, found, "A GPU"), copy, time_launch, cache
        )

    def __call__(self) -> Call:
        self.result[...] = np.nan
        workspace = np.full(self.convolution.workspace_bytes, 99, np.uint8)
        addresses = [x.ctypes.data for x in (*self.arrays, self.result)]
        self.convolution.launch(addresses, workspace.ctypes.data, STREAM)
        node = Node("c", "convolution", self.type, ("x", "k"), self.attrs)
        np.testing.assert_array_equal(self.result, eval_node(node, self.arrays)[0])
        assert self.cudnn.stream == STREAM
        return self


@pytest.fixture
def cache(tmp_path: Path) -> ConvolutionCache:
    return ConvolutionCache(tmp_path / "convolutions", 1 << 20, ".json")


REVERSED = replace(LAYER, window=tuple(replace(w, reversed=True) for w in LAYER.window))
STRIDED = replace(LAYER, window=(WindowDimension(3, stride=2, padding_high=2), SAME))
SPREAD = replace(
    LAYER,
    window=(WindowDimension(3, base_dilation=2, padding_low=1, padding_high=2), SAME),
    kernel_input_feature=3,
    kernel_output_feature=2,
)
GROUPS = replace(LAYER, feature_group_count=2)
FILTER = replace(
    LAYER,
    window=(replace(SAME, size=6), replace(SAME, size=5)),
    input_batch=3,
    input_feature=0,
    kernel_input_feature=0,
    kernel_output_feature=3,
    kernel_spatial=(1, 2),
    output_batch=2,
    output_spatial=(0, 1),
)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
@pytest.mark.parametrize(
    ("attrs", "shapes", "copies"),
    [
        (LAYER, SHAPES, [False]),
        (REVERSED, SHAPES, [False]),
        (STRIDED, ((2, 6, 5, 4), (3, 3, 4, 8), (2, 3, 5, 8)), [False]),
        (SPREAD, ((2, 3, 5, 8), (3, 3, 4, 8), (2, 6, 5, 4)), [False]),
        (GROUPS, ((2, 6, 5, 4), (3, 3, 2, 8), (2, 6, 5, 8)), [False]),
        (FILTER, ((2, 6, 5, 4), (2, 6, 5, 8), (3, 3, 4, 8)), [True]),
    ],
    ids=["layer", "reversed", "strided", "spread", "groups", "filter"],
)  # fmt: skip
def test_forms(attrs: Any, shapes: Any, copies: Any, dtype: DType, cache: Any) -> None:
    call = Call(FakeCudnn("eng0"), cache, attrs=attrs, shapes=shapes, dtype=dtype)()
    assert call.copies == copies


def test_a_mirrored_filter(cache: Any) -> None:
    window = tuple(replace(w, stride=2, reversed=True) for w in LAYER.window)
    Call(
        FakeCudnn("eng0"),
        cache,
        attrs=replace(LAYER, window=window),
        shapes=(*SHAPES[:2], (2, 3, 3, 8)),
    )()


def test_the_fastest_is_taken_and_kept(cache: Any) -> None:
    cudnn = FakeCudnn()
    call = Call(cudnn, cache, (9.0, 5.0, 7.0))
    copies = 3 * 3 * 4 * 8 * 4
    assert call.convolution.workspace_bytes == -(-copies // 256) * 256 + 200
    call()()
    assert cudnn.launched == ["eng0", "eng1", "eng2", "eng1", "eng1"]  # each once, then the winner
    assert call.convolution.workspace_bytes == -(-copies // 256) * 256 + 100

    later = FakeCudnn()  # another process
    Call(later, cache)()
    assert later.launched == ["eng1"]


def test_the_first_stays_where_others_win_little(cache: Any) -> None:
    assert Call(FakeCudnn(), cache, (9.0, 8.99, 8.95))().cudnn.launched[-1] == "eng0"


def test_plans_that_fail_are_left_out(cache: Any) -> None:
    cudnn = FakeCudnn()
    cudnn.broken = {"eng0"}
    Call(cudnn, cache, (8.0, 7.0))()
    assert cudnn.launched == ["eng1", "eng2", "eng2"]


def test_where_none_runs_nothing_is_kept(cache: Any) -> None:
    cudnn = FakeCudnn()
    cudnn.broken = {"eng0", "eng1", "eng2"}
    with pytest.raises(NoCudnnPlan, match="none of those"):
        Call(cudnn, cache)()
    assert Call(FakeCudnn(), cache, (9.0, 5.0, 7.0))().cudnn.launched[-1] == "eng1"


def test_what_another_kept_meanwhile_is_taken(cache: Any) -> None:
    one, other = Call(FakeCudnn(), cache, (9.0, 5.0, 7.0)), Call(FakeCudnn(), cache)
    one()
    assert other().cudnn.launched == ["eng1"]


def test_what_the_library_names_no_longer_is_measured_anew(cache: Any) -> None:
    Call(FakeCudnn(), cache, (9.0, 5.0, 7.0))()
    found = Call(FakeCudnn("eng0", "eng2"), cache, (6.0, 4.0))()
    assert found.cudnn.launched == ["eng0", "eng2", "eng2"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"format": "astitch convolution 1"}'])
def test_damaged_entries_do_not_exist(text: bytes, cache: Any) -> None:
    call = Call(FakeCudnn(), cache, (9.0, 5.0, 7.0))
    cache.store_bytes(call.convolution._key, text)
    assert Call(FakeCudnn(), cache, (9.0, 5.0, 7.0))().cudnn.launched[-1] == "eng1"


def test_only_plans_that_repeat_and_keep_the_precision(cache: Any) -> None:
    cudnn = FakeCudnn("eng0", "eng1", "eng2", "eng3", "eng4")
    cudnn.notes = dict(zip(cudnn.names, Note, strict=False))
    assert Call(cudnn, cache, (5.0, 4.0))().cudnn.launched[-1] == "eng4"
    highest = replace(LAYER, precision=("HIGHEST", "DEFAULT"))
    assert Call(cudnn, cache, attrs=highest)().cudnn.launched[-1] == "eng4"
    cudnn.names = cudnn.names[:4]
    assert (
        Call(cudnn, cache, attrs=replace(LAYER, precision=("HIGH", "HIGH")))().cudnn.launched[-1]
        == "eng0"
    )
    with pytest.raises(NoCudnnPlan, match="none of cuDNN's 4 plans can be built"):
        Call(
            cudnn,
            cache,
            attrs=replace(highest, feature_group_count=2),
            shapes=((2, 6, 5, 4), (3, 3, 2, 8), SHAPES[2]),
        )


def test_plans_that_need_too_much_room_are_left_out(cache: Any) -> None:
    cudnn = FakeCudnn()
    cudnn.sizes = {"eng0": WORKSPACE_BYTES + 1, "eng2": WORKSPACE_BYTES + 1}
    assert Call(cudnn, cache)().cudnn.launched == ["eng1"]


def test_a_plan_that_is_named_twice_is_measured_once(cache: Any) -> None:
    cudnn = FakeCudnn("eng0", "eng1", "eng0")
    Call(cudnn, cache, (9.0, 5.0))()
    assert cudnn.launched == ["eng0", "eng1", "eng1"]


def test_few_plans_are_measured(cache: Any) -> None:
    cudnn = FakeCudnn(*(f"eng{i}" for i in range(CANDIDATES + 5)))
    Call(cudnn, cache, range(CANDIDATES, 0, -1))()
    assert len(set(cudnn.launched)) == CANDIDATES


def test_no_plan(cache: Any) -> None:
    cudnn = FakeCudnn()
    cudnn.names = ()
    with pytest.raises(NoCudnnPlan, match="^No valid engine configs$"):
        Call(cudnn, cache)


def test_convolutions_that_differ_have_entries_of_their_own(cache: Any) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"dtype": DType.F16},
        {"attrs": replace(LAYER, precision=("HIGHEST", "HIGHEST"))},
        {"attrs": REVERSED},
        {"shapes": ((3, 6, 5, 4), SHAPES[1], (3, 6, 5, 8))},
    ]
    keys = {Call(FakeCudnn(), cache, **case).convolution._key for case in cases}
    assert len(keys) == len(cases)


def test_bindings_that_do_not_work_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    find = find_bindings.__wrapped__
    monkeypatch.setitem(sys.modules, "cudnn", None)  # not installed
    assert find(0) is None
    monkeypatch.setitem(sys.modules, "cudnn", ModuleType("cudnn"))
    with pytest.warns(RuntimeWarning, match="cuDNN does not work: .*; XLA convolves"):
        assert find(0) is None
    missing = ModuleNotFoundError("No module named 'cudnn._compiled_module'")
    missing.name = "cudnn._compiled_module"

    def fail(_: str) -> None:
        raise missing

    with monkeypatch.context() as broken:
        broken.setattr(cudnn.importlib, "import_module", fail)
        with pytest.warns(RuntimeWarning, match="does not work: No module .*; XLA convolves"):
            assert find(0) is None
    monkeypatch.setitem(sys.modules, "cudnn", FakeCudnn())
    assert find(0) is not None
