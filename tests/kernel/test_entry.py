"""The entry of a kernel under every ABI."""

from __future__ import annotations

import pytest

from astitch.errors import IllegalProduct
from astitch.kernel.entry import (
    CUPY,
    Entry,
    LaunchAbi,
    Pointer,
    Slice,
    SliceStart,
    render_entry,
)

XLA = LaunchAbi(pointer_table=False, own_words=True, tokens=True)
XLA_STATIC = LaunchAbi(static_shared=True)
POINTERS = Pointer("const float", "x", restrict=True), Pointer("float", "y", restrict=True)
HEAD = 'extern "C" __global__ void __launch_bounds__(32) k('
WORDS = "__device__ __align__(256) unsigned int k_words[64];"


@pytest.mark.parametrize(
    ("abi", "words", "many", "lines"),
    [
        (CUPY, 0, False, ["    const float* __restrict__ x,", "    float* __restrict__ y) {"]),
        (
            CUPY,
            64,
            False,
            [
                "    const float* __restrict__ x,",
                "    float* __restrict__ y,",
                "    unsigned int* barrier) {",
            ],
        ),
        (
            XLA,
            64,
            False,
            [
                "    const float* __restrict__ x,",
                "    float* __restrict__ y,",
                "    const unsigned int* before, unsigned int* done) {",
                "  unsigned int* const barrier = k_words;",
            ],
        ),
        (
            CUPY,
            64,
            True,
            [
                "unsigned char* const* pointers) {",
                "  const float* __restrict__ const x = reinterpret_cast<const float*>(pointers[0]);",
                "  float* __restrict__ const y = reinterpret_cast<float*>(pointers[1]);",
                "  unsigned int* const barrier = reinterpret_cast<unsigned int*>(pointers[2]);",
            ],
        ),
        (
            XLA,
            64,
            True,
            [
                "unsigned char* p0, unsigned char* p1, "
                "const unsigned int* before, unsigned int* done) {",
                "  const float* __restrict__ const x = reinterpret_cast<const float*>(p0);",
                "  float* __restrict__ const y = reinterpret_cast<float*>(p1);",
                "  unsigned int* const barrier = reinterpret_cast<unsigned int*>(k_words);",
            ],
        ),
    ],
    ids=["cupy", "cupy-barrier", "xla-barrier", "cupy-table", "xla-table"],
)
def test_parameters_are_those_of_the_launcher(
    abi: LaunchAbi, words: int, many: bool, lines: list[str]
) -> None:
    found = "\n".join(render_entry(Entry("k", "32", POINTERS, words, many), abi))
    array = f"{WORDS}\n" if words and abi.own_words else ""
    assert found == f"{array}{HEAD}{'' if many else chr(10)}" + "\n".join(lines)


def test_parameters_that_share_memory_are_not_restrict() -> None:
    found = list(render_entry(Entry("k", "32", POINTERS), LaunchAbi(aliased=frozenset({1}))))
    assert found == [HEAD, "    const float* __restrict__ x,", "    float* y) {"]
    with pytest.raises(IllegalProduct, match="kernel k: parameter 2 may share memory"):
        list(render_entry(Entry("k", "32", POINTERS), LaunchAbi(aliased=frozenset({2}))))


def test_a_slice_is_a_pointer_into_the_array() -> None:
    cut = Slice(1, (SliceStart("int", 3, 64), SliceStart("unsigned int", 7, 8)))
    found = list(render_entry(Entry("k", "32", POINTERS), LaunchAbi(slices=(cut,))))
    assert found == [
        HEAD,
        "    const float* __restrict__ x,",
        "    float* y_whole,",
        "    const float* y_before,",
        "    const int* y_start_0,",
        "    const unsigned int* y_start_1) {",
        "  float* __restrict__ const y = y_whole + ((long long)hlo_clamp((int)0, *y_start_0, (int)3) * 64"
        " + (long long)hlo_clamp((unsigned int)0, *y_start_1, (unsigned int)7) * 8);",
    ]


def test_slices_of_parameters_that_are_not_there_are_refused() -> None:
    for entry, number, said in (
        (Entry("k", "32", POINTERS), 2, "kernel k: parameter 2 is a slice"),
        (Entry("k", "32", POINTERS, many=True), 1, "no parameter of a table can be a slice"),
    ):
        with pytest.raises(IllegalProduct, match=said):
            list(render_entry(entry, LaunchAbi(slices=(Slice(number, ()),))))


@pytest.mark.parametrize(
    ("abi", "shared_bytes", "waiting", "static"),
    [
        (CUPY, 64, 0, False),
        (XLA_STATIC, 0, 0, False),
        (XLA_STATIC, 64, 0, True),
        (XLA_STATIC, 48 << 10, 0, True),
        (XLA_STATIC, (48 << 10) + 16, 0, False),
        (XLA_STATIC, 64, 2, True),
        (XLA_STATIC, 64, 7, True),
        (XLA_STATIC, 64, 8, False),  # 8 * 1,088 B are more than 8 KB
        (XLA_STATIC, 128, 7, True),
        (XLA_STATIC, 144, 7, False),  # blocks get whole units: 1,280 B each
        (XLA_STATIC, 16 << 10, 1, False),
    ],
)
def test_shared_memory_is_static_where_all_blocks_fit_all_the_same(
    abi: LaunchAbi, shared_bytes: int, waiting: int, static: bool
) -> None:
    assert abi.is_static(shared_bytes, waiting) is static
    kind = "STATIC" if static else "SHARED"
    text = abi.declare_arena(shared_bytes, waiting)
    assert text == f"ASTITCH_{kind}_ARENA({shared_bytes});"
