"""Check mode finds what it is for: a small kernel for each kind of bug, correct kernels beside.

A line that a fault must point at ends with `//!`.  The correct kernels use the same idioms right
and must pass without a word, in check mode and with the right numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from astitch.errors import KernelFault
from astitch.run.emulate import Order, compile_host, compile_many

Arrays = list[np.ndarray]

BLOCK_SUM = """
__device__ __forceinline__ float warp_sum(float v)
{
    for (int lanes = 16; lanes > 0; lanes >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    return v;
}
template <class Slot> __device__ __forceinline__ float block_sum(float v, Slot partial)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    return warp_sum(lane < int(blockDim.x) / 32 ? partial[lane] : 0.f);
}
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def words(count: int) -> np.ndarray:
    return np.zeros(count, np.uint32)


@dataclass(frozen=True)
class Case:
    """A kernel named k: its parameters and body, its launch, and what check mode says of it."""

    parameters: str
    body: str
    arguments: Arrays
    fault: str
    grid: int = 1
    block: int = 64
    launch: dict = field(default_factory=dict)
    before: str = ""

    @property
    def source(self) -> str:
        return (
            f'#include "astitch.cuh"\n{self.before}\nextern "C" __global__ void '
            f"__launch_bounds__({self.block}) k({self.parameters})\n{{{self.body}}}\n"
        )

    @property
    def marked_lines(self) -> list[int]:
        lines = self.source.splitlines()
        return [i for i, line in enumerate(lines, 1) if line.endswith("//!")]


X_Y = "const float* __restrict__ x, float* __restrict__ y"

SPIN_BARRIER = """
__device__ void spin(unsigned* word)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        %s
        atomicAdd(word, 1u);
        while (atomicAdd(word, 0u) < gridDim.x) {
        }
        %s
    }
    __syncthreads();
}
"""

TWO_PHASES = """
    const float mine = x[blockIdx.x * 64 + threadIdx.x];
    if (threadIdx.x == 0) partial[blockIdx.x] = mine; %s
    %s
    float sum = 0.f;
    for (int i = 0; i < int(gridDim.x); ++i) sum += partial[i]; %s
    y[blockIdx.x * 64 + threadIdx.x] = sum;
"""
TWO_PHASE_PARAMETERS = "const float* x, float* partial, float* y, unsigned* word"

TICKET = """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, red, 0, 32);
    ASTITCH_SHARED(unsigned, last, 128, 1);
    const float sum = block_sum(x[blockIdx.x * 64 + threadIdx.x], red);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum; %s
        %s
        last[0] = atomicAdd(word, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last[0] && threadIdx.x == 0) {
        __threadfence();
        float all = 0.f;
        for (int i = 0; i < int(gridDim.x); ++i) all += partial[i]; %s
        y[0] = all;
    }
"""


def two_phase_arrays(blocks: int = 4) -> Arrays:
    return [numbers(blocks, 64), numbers(blocks), numbers(blocks, 64), words(1)]


BUGS = {
    "no barrier between a shared write and its reads": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, t, 0, 64);
    t[threadIdx.x] = x[threadIdx.x]; //!
    y[threadIdx.x] = t[threadIdx.x / 2]; //!
""",
        [numbers(64), numbers(64)],
        r"race on shared 't'\[\d+\]",
        launch={"shared_bytes": 256},
    ),
    "no barrier before a slot is used again": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, red, 0, 32);
    for (int i = 0; i < 2; ++i) {
        const float v = warp_sum(x[i * 64 + threadIdx.x]);
        if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v; //!
        __syncthreads();
        y[i * 64 + threadIdx.x] = red[0] + red[1]; //!
    }
""",
        [numbers(128), numbers(128)],
        r"race on shared 'red'",
        launch={"shared_bytes": 256},
        before=BLOCK_SUM,
    ),
    "no barrier at the end of a row loop": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(512);
    ASTITCH_SHARED(float, row, 0, 64);
    for (int r = blockIdx.x; r < 4; r += gridDim.x) {
        row[threadIdx.x] = x[r * 64 + threadIdx.x]; //!
        __syncthreads();
        y[r * 64 + threadIdx.x] = row[threadIdx.x] - row[63]; //!
    }
""",
        [numbers(4, 64), numbers(4, 64)],
        r"race on shared 'row'\[\d+\]",
        grid=2,
        launch={"shared_bytes": 512},
    ),
    "no barrier in a column sum": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(1056);
    ASTITCH_SHARED(float, part, 0, 264);
    const int column = threadIdx.x & 31, warp = threadIdx.x >> 5;
    part[warp * 33 + column] = x[threadIdx.x]; //!
    if (warp == 0) {
        float sum = 0.f;
        for (int w = 0; w < 8; ++w) sum += part[w * 33 + column]; //!
        y[column] = sum;
    }
""",
        [numbers(256), numbers(32)],
        r"race on shared 'part'",
        block=256,
        # Warp 0 last: in forward order it would read what nobody has written, another fault.
        launch={"shared_bytes": 1056, "order": Order.REVERSE},
    ),
    "several blocks add to one element without atomics": Case(
        X_Y,
        """
    y[threadIdx.x] += x[blockIdx.x * 64 + threadIdx.x]; //!
""",
        [numbers(4, 64), numbers(64)],
        r"race on 'arg1'\[0\]",
        grid=4,
    ),
    "several threads store one element": Case(
        X_Y,
        """
    y[threadIdx.x / 2] = x[threadIdx.x / 2]; //!
""",
        [numbers(64), numbers(64)],
        r"race on 'arg1'\[0\][^\n]*\n  write by block 0 thread 0 .*\n  write by block 0 thread 1 ",
    ),
    "missing global barrier": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("//!", "__syncthreads();", "//!"),
        two_phase_arrays(),
        r"race on 'arg1'",
        grid=4,
        launch={"cooperative": True},
    ),
    "spin barrier without fences": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("//!", "spin(word);", "//!"),
        two_phase_arrays(),
        r"race on 'arg1'\[\d\]: nothing orders these two\n  write .*\n  read ",
        grid=4,
        launch={"cooperative": True},
        before=SPIN_BARRIER % ("", ""),
    ),
    "spin barrier without the fence after it": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("//!", "spin(word);", "//!"),
        two_phase_arrays(),
        r"race on 'arg1'",
        grid=4,
        launch={"cooperative": True},
        before=SPIN_BARRIER % ("__threadfence();", ""),
    ),
    "ticket without the writer's fence": Case(
        TWO_PHASE_PARAMETERS,
        TICKET % ("//!", "", "//!"),
        two_phase_arrays(),
        r"race on 'arg1'",
        grid=4,
        launch={"shared_bytes": 256},
        before=BLOCK_SUM,
    ),
    "fence by one thread for another's write without a barrier": Case(
        "float* partial, unsigned* word, float* y",
        """
    if (threadIdx.x == 32) partial[blockIdx.x] = 1.f; //!
    if (threadIdx.x == 33) {
        __threadfence();
        if (atomicAdd(word, 1u) == gridDim.x - 1) {
            __threadfence();
            y[0] = partial[0]; //!
        }
    }
""",
        [numbers(2), words(1), numbers(1)],
        r"race on 'arg0'\[0\]",
        grid=2,
    ),
    "lanes exchange through shared memory without __syncwarp": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, t, 0, 64);
    t[threadIdx.x] = x[threadIdx.x]; //!
    const float v = __shfl_xor_sync(0xffffffffu, 1.f, 1);
    y[threadIdx.x] = t[threadIdx.x ^ 1] * v; //!
""",
        [numbers(64), numbers(64)],
        r"race on shared 't'",
        launch={"shared_bytes": 256},
    ),
    "__syncwarp of half a warp, read by the other half": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, t, 0, 64);
    t[threadIdx.x] = x[threadIdx.x]; //!
    __syncwarp((threadIdx.x & 16) ? 0xffff0000u : 0x0000ffffu);
    if (threadIdx.x & 16) y[threadIdx.x] = t[threadIdx.x ^ 16]; //!
""",
        [numbers(64), numbers(64)],
        r"race on shared 't'\[15\]",
        launch={"shared_bytes": 256},
    ),
    "in-place stencil": Case(
        "float* x",
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i + 1 < 256) {
        const float next = x[i + 1]; //!
        x[i] = next; //!
    }
""",
        [numbers(256)],
        r"race on 'arg0'",
        grid=4,
    ),
    "index beyond a slot, inside the arena": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(1024);
    ASTITCH_SHARED(float, small, 0, 63);
    ASTITCH_SHARED(float, next, 256, 64);
    next[threadIdx.x] = 0.f;
    small[threadIdx.x] = x[threadIdx.x]; //!
    __syncthreads();
    y[threadIdx.x] = small[threadIdx.x] + next[threadIdx.x];
""",
        [numbers(64), numbers(64)],
        r"out of bounds: shared 'small' has 63 elements, access to element 63\n",
        launch={"shared_bytes": 1024},
    ),
    "vector beyond a slot": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(1024);
    ASTITCH_SHARED(float, row, 0, 62);
    if (threadIdx.x < 16) {
        const Vec<float, 4> v = *reinterpret_cast<const Vec<float, 4>*>(x + 4 * threadIdx.x);
        shared_vec<float, 4>(row, 4 * threadIdx.x) = v; //!
        y[threadIdx.x] = v.v[0];
    }
""",
        [numbers(64), numbers(64)],
        r"out of bounds: shared 'row' has 62 elements, access to element 60 and following",
        launch={"shared_bytes": 1024},
    ),
    "pointer beyond the arena": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, t, 0, 64);
    float* p = t;
    p[threadIdx.x + 1] = x[threadIdx.x]; //!
    y[threadIdx.x] = 0.f;
""",
        [numbers(64), numbers(64)],
        r"out of bounds: 0 bytes past the end of 'shared memory'",
        launch={"shared_bytes": 256},
    ),
    "launch with less shared memory than the arena": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(512); //!
    ASTITCH_SHARED(float, t, 0, 128);
    t[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = t[threadIdx.x];
""",
        [numbers(64), numbers(64)],
        r"too little shared memory: the kernel's arena has 512 bytes, the launch gives 256",
        launch={"shared_bytes": 256},
    ),
    "shared memory read before it is written": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(128);
    ASTITCH_SHARED(float, red, 0, 32);
    const float v = warp_sum(x[threadIdx.x]);
    if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    y[threadIdx.x] = warp_sum(red[threadIdx.x & 31]); //!
""",
        [numbers(64), numbers(64)],
        r"uninitialised read: shared 'red'\[\d+\] was not written before by this block",
        launch={"shared_bytes": 128},
        before=BLOCK_SUM,
    ),
    "slot overwritten through an overlapping slot": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, kept, 0, 64);
    ASTITCH_SHARED(float, other, 128, 16);
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 16) other[threadIdx.x] = 0.f; //!
    __syncthreads();
    y[threadIdx.x] = kept[threadIdx.x]; //!
""",
        [numbers(64), numbers(64)],
        r"overwritten slot: shared 'kept'\[32\] holds what was written through slot 'other'",
        launch={"shared_bytes": 256},
    ),
    "scratch read before it is written": Case(
        "const float* x, float* scratch, float* y",
        """
    if (threadIdx.x < 32) scratch[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = scratch[63 - threadIdx.x]; //!
""",
        [numbers(64), numbers(64), numbers(64)],
        r"uninitialised read: 'arg1'\[63\] has not been written",
        launch={"uninitialised": (1, 2)},
    ),
    "global read without a tail guard": Case(
        X_Y,
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    const float v = x[i]; //!
    if (i < 100 || v == 12345.f) y[i] = v;
""",
        [numbers(100), numbers(100)],
        r"out of bounds: 0 bytes past the end of 'arg0' \(100 elements\), element 100",
        grid=2,
    ),
    "global write without a tail guard": Case(
        X_Y,
        """
    const int i = blockIdx.x * 64 + threadIdx.x;
    y[i] = i < 100 ? x[i] : 0.f; //!
""",
        [numbers(100), numbers(100)],
        r"out of bounds: 0 bytes past the end of 'arg1'[^\n]*\n  4-byte write by block 1 thread 36",
        grid=2,
    ),
    "negative index": Case(
        X_Y,
        """
    y[threadIdx.x] = x[int(threadIdx.x) - 1]; //!
""",
        [numbers(64), numbers(64)],
        r"out of bounds: 4 bytes before the start of 'arg0'",
    ),
    "far index": Case(
        X_Y,
        """
    y[threadIdx.x] = x[threadIdx.x * 100000]; //!
""",
        [numbers(64), numbers(64)],
        r"out of bounds",
    ),
    "write through a parameter to const": Case(
        "const float* x, float* y",
        """
    y[threadIdx.x] = 0.f;
    const_cast<float*>(x)[threadIdx.x] = 1.f; //!
""",
        [numbers(64), numbers(64)],
        r"write to const: 'arg0'\[0\]",
    ),
    "misaligned vector load": Case(
        X_Y,
        """
    if (threadIdx.x < 8) {
        const float* p = x + 1 + 4 * threadIdx.x;
        const Vec<float, 4> v = *reinterpret_cast<const Vec<float, 4>*>(p); //!
        y[threadIdx.x] = v.v[0] + v.v[3];
    }
""",
        [numbers(64), numbers(64)],
        r"misaligned access",
    ),
    "misaligned vector of a slot": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(512);
    ASTITCH_SHARED(float, row, 8, 64);
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 8) y[threadIdx.x] = shared_vec<float, 4>(row, threadIdx.x * 4).v[1]; //!
""",
        [numbers(64), numbers(64)],
        r"misaligned access: shared 'row'\[0\]",
        launch={"shared_bytes": 512},
    ),
    "index beyond a local array": Case(
        "const int* x, float* y",
        """
    float v[4];
    for (int i = 0; i < 4; ++i) v[i] = float(i);
    y[threadIdx.x] = v[x[threadIdx.x]]; //!
""",
        [np.full(64, 4, np.int32), numbers(64)],
        r"out of bounds: index outside a local array",
    ),
    "index beyond a Vec": Case(
        "const int* x, float* y",
        """
    Vec<float, 4> v = {{0.f, 1.f, 2.f, 3.f}};
    y[threadIdx.x] = v.v[x[threadIdx.x]]; //!
""",
        [np.full(64, 4, np.int32), numbers(64)],
        r"out of bounds: index outside a local array",
    ),
    "integer division by zero": Case(
        "const int* x, int* y",
        """
    y[threadIdx.x] = 7 / x[threadIdx.x]; //!
""",
        [np.zeros(64, np.int32), np.zeros(64, np.int32)],
        r"division: integer division by zero",
    ),
    "barriers at two places": Case(
        X_Y,
        """
    if (threadIdx.x < 40) {
        __syncthreads(); //!
        y[threadIdx.x] = x[threadIdx.x];
    } else {
        y[threadIdx.x] = 0.f;
        __syncthreads(); //!
    }
""",
        [numbers(64), numbers(64)],
        r"divergent barrier",
    ),
    "threads pass a barrier a different number of times": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    for (int i = 0; i < 1 + int(threadIdx.x < 32); ++i) {
        v += 1.f;
        __syncthreads(); //!
    }
    y[threadIdx.x] = v;
""",
        [numbers(64), numbers(64)],
        r"barrier count mismatch: 32 threads of block 0 have exited while 32 wait",
    ),
    "threads return before a barrier": Case(
        X_Y,
        """
    if (threadIdx.x >= 50) return;
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads(); //!
""",
        [numbers(64), numbers(64)],
        r"barrier count mismatch: 14 threads of block 0 have exited",
    ),
    "shuffle with a full mask in a branch": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    if ((threadIdx.x & 31) < 20) v += __shfl_xor_sync(0xffffffffu, v, 1); //!
    y[threadIdx.x] = v;
""",
        [numbers(64), numbers(64)],
        r"bad warp mask: .* exited while lane \d+ of its warp waits for it",
    ),
    "shuffle from a lane outside the mask": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    if ((threadIdx.x & 31) < 16) v += __shfl_xor_sync(0x0000ffffu, v, 16); //!
    y[threadIdx.x] = v;
""",
        [numbers(64), numbers(64)],
        r"bad warp mask: block 0 thread 0 reads from lane 16, which is not in mask 0x0000ffff",
    ),
    "shuffle with a mask without the caller": Case(
        X_Y,
        """
    y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1); //!
""",
        [numbers(64), numbers(64)],
        r"bad warp mask: block 0 thread 16: mask 0x0000ffff does not name the calling lane",
    ),
    "lanes meet in different warp operations": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    if (threadIdx.x & 1) {
        v += __shfl_xor_sync(0xffffffffu, v, 2); //!
    } else {
        v += float(__ballot_sync(0xffffffffu, v > 0)); //!
    }
    y[threadIdx.x] = v;
""",
        [numbers(64), numbers(64)],
        r"bad warp mask: .* meet in different warp operations",
    ),
    "half of a block at a barrier, half in a warp operation": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    if (threadIdx.x & 1) {
        __syncthreads(); //!
    } else {
        v = __shfl_xor_sync(0xffffffffu, v, 2); //!
    }
    y[threadIdx.x] = v;
""",
        [numbers(64), numbers(64)],
        r"deadlock: no thread can go on;\n  block 0: 0 threads exited, 32 at a block barrier, 32",
    ),
    "spin barrier among blocks that are not resident": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "spin(word);", ""),
        two_phase_arrays(),
        r"livelock: .*\n  blocks are not resident together",
        grid=4,
        before=SPIN_BARRIER.replace("gridDim.x) {", "gridDim.x) { //!")
        % ("__threadfence();", "__threadfence();"),
    ),
    "global barrier in a launch that is not cooperative": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "ASTITCH_GLOBAL_BARRIER(word); //!", ""),
        two_phase_arrays(),
        r"bad global barrier: .* not cooperative",
        grid=4,
    ),
    "global barrier that one block does not reach": Case(
        TWO_PHASE_PARAMETERS,
        """
    y[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
    if (blockIdx.x == 2) return;
    ASTITCH_GLOBAL_BARRIER(word); //!
""",
        two_phase_arrays(),
        r"deadlock: .*\n  block 0: .* 64 at a global barrier(.|\n)*block 2: 64 threads exited",
        grid=4,
        launch={"cooperative": True},
    ),
    "global barrier on a word that is not zero": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "ASTITCH_GLOBAL_BARRIER(word); //!", ""),
        [*two_phase_arrays()[:3], np.ones(1, np.uint32)],
        r"bad global barrier: .* does not start at zero",
        grid=4,
        launch={"cooperative": True},
    ),
    "blocks at global barriers on different words": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "ASTITCH_GLOBAL_BARRIER(word + (blockIdx.x & 1)); //!", ""),
        [*two_phase_arrays()[:3], words(2)],
        r"barrier mismatch: block 1 waits at a global barrier with another word than block 0",
        grid=4,
        launch={"cooperative": True},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _compile_all_at_once() -> None:
    """Two compilers at a time; the tests then find their modules loaded."""
    compile_many([case.source for case in (*BUGS.values(), *CORRECT.values())], check=True)
    in_fast_mode = [*(BUGS[name] for name in FOUND_IN_EVERY_MODE), *CORRECT.values()]
    compile_many([case.source for case in in_fast_mode])


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found_with_its_line(name: str) -> None:
    case = BUGS[name]
    with pytest.raises(KernelFault) as fault:
        run(case)
    message = str(fault.value)
    assert re.search(case.fault, message), message
    assert message.startswith("kernel 'k': ")
    named = {int(number) for number in re.findall(r"kernel\.cu:(\d+)", message)}
    assert case.marked_lines and set(case.marked_lines) <= named, message


FOUND_IN_EVERY_MODE = (
    "launch with less shared memory than the arena",
    "barriers at two places",
    "shuffle with a full mask in a branch",
    "shuffle from a lane outside the mask",
    "shuffle with a mask without the caller",
    "lanes meet in different warp operations",
    "half of a block at a barrier, half in a warp operation",
    "spin barrier among blocks that are not resident",
    "global barrier in a launch that is not cooperative",
    "global barrier that one block does not reach",
    "global barrier on a word that is not zero",
    "blocks at global barriers on different words",
)


@pytest.mark.parametrize("name", FOUND_IN_EVERY_MODE)
def test_what_would_hang_is_found_in_fast_mode_too(name: str) -> None:
    case = BUGS[name]
    with pytest.raises(KernelFault) as fault:
        run(case, check=False)
    message = str(fault.value)
    assert re.search(case.fault, message), message
    assert any(f"kernel.cu:{line}" in message for line in case.marked_lines), message


def run(case: Case, check: bool = True, **launch: object) -> Arrays:
    arguments = [array.copy() for array in case.arguments]
    module = compile_host(case.source, check=check)
    module.launch("k", case.grid, case.block, arguments, **{**case.launch, **launch})
    return arguments


# ---- correct kernels -----------------------------------------------------------------------------


CORRECT = {
    "two block sums that share a slot": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(128);
    ASTITCH_SHARED(float, red, 0, 32);
    for (int r = blockIdx.x; r < 6; r += gridDim.x) {
        const float v = x[r * 128 + threadIdx.x];
        const float mean = block_sum(v, red) / 128.f;
        const float variance = block_sum((v - mean) * (v - mean), red) / 128.f;
        y[r * 128 + threadIdx.x] = (v - mean) * rsqrtf(variance + 1e-5f);
    }
""",
        [numbers(6, 128), numbers(6, 128)],
        "",
        grid=4,
        block=128,
        launch={"shared_bytes": 128, "uninitialised": (1,)},
        before=BLOCK_SUM,
    ),
    "overlapping slots with disjoint lives": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, first, 0, 64);
    ASTITCH_SHARED(double, second, 128, 16);
    for (int i = 0; i < 3; ++i) {
        first[threadIdx.x] = x[threadIdx.x] + float(i);
        __syncthreads();
        const float v = first[63 - threadIdx.x];
        __syncthreads();
        if (threadIdx.x < 16) second[threadIdx.x] = double(v);
        __syncthreads();
        y[i * 64 + threadIdx.x] = float(second[threadIdx.x & 15]);
        __syncthreads();
    }
""",
        [numbers(64), numbers(3, 64)],
        "",
        launch={"shared_bytes": 256, "uninitialised": (1,)},
    ),
    "spin barrier with fences": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "spin(word);", ""),
        two_phase_arrays(),
        "",
        grid=4,
        launch={"cooperative": True, "uninitialised": (1, 2)},
        before=SPIN_BARRIER % ("__threadfence();", "__threadfence();"),
    ),
    "spin barrier with release and acquire, then the partials written again": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "spin(word, gridDim.x);", "")
        + """
    spin(word, 2 * gridDim.x);
    if (blockIdx.x == 0 && threadIdx.x < gridDim.x) partial[threadIdx.x] = 0.f;
""",
        two_phase_arrays(),
        "",
        grid=4,
        launch={"cooperative": True, "uninitialised": (1, 2)},
        before="""
__device__ void spin(unsigned* word, unsigned until)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        astitch_add_release(word, 1u);
        while (astitch_load_acquire(word) < until) __nanosleep(32);
    }
    __syncthreads();
}
""",
    ),
    "ticket: the last block combines": Case(
        TWO_PHASE_PARAMETERS,
        TICKET % ("", "__threadfence();", ""),
        two_phase_arrays(),
        "",
        grid=4,
        launch={"shared_bytes": 256, "uninitialised": (1, 2)},
        before=BLOCK_SUM,
    ),
    "shuffles with partial masks": Case(
        X_Y,
        """
    float v = x[threadIdx.x];
    const int lane = threadIdx.x & 31;
    if (lane < 8) {
        for (int k = 4; k; k >>= 1) v += __shfl_xor_sync(0x000000ffu, v, k);
    } else if (lane < 16) {
        v = __shfl_sync(0x0000ff00u, v, 8);
    }
    v += __shfl_down_sync(0xffffffffu, v, 1, 16) + __shfl_up_sync(0xffffffffu, v, 2, 8);
    y[threadIdx.x] = v + float(__popc(__ballot_sync(0xffffffffu, v > 0.f)));
""",
        [numbers(48), numbers(48)],
        "",
        block=48,
        launch={"uninitialised": (1,)},
    ),
    "halves of a warp exchange through shared memory": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(256);
    ASTITCH_SHARED(float, t, 0, 64);
    const unsigned half = (threadIdx.x & 16) ? 0xffff0000u : 0x0000ffffu;
    for (int i = 0; i < 3; ++i) {
        t[threadIdx.x] = x[threadIdx.x] * float(i);
        __syncwarp(half);
        y[i * 64 + threadIdx.x] = t[threadIdx.x ^ 3];
        __syncwarp(half);
    }
""",
        [numbers(64), numbers(3, 64)],
        "",
        launch={"shared_bytes": 256, "uninitialised": (1,)},
    ),
    "global barrier used twice, launched again without a reset": Case(
        TWO_PHASE_PARAMETERS,
        TWO_PHASES % ("", "ASTITCH_GLOBAL_BARRIER(word);", "")
        + """
    ASTITCH_GLOBAL_BARRIER(word);
    if (threadIdx.x == 0) partial[(blockIdx.x + 1) % gridDim.x] = 1.f;
""",
        two_phase_arrays(),
        "",
        grid=4,
        launch={"cooperative": True, "uninitialised": (1, 2)},
    ),
    "vector loads and stores, also of a slot": Case(
        X_Y,
        """
    ASTITCH_SHARED_ARENA(1024);
    ASTITCH_SHARED(float, row, 0, 256);
    shared_vec<float, 4>(row, 4 * threadIdx.x) =
        *reinterpret_cast<const Vec<float, 4>*>(x + 4 * threadIdx.x);
    __syncthreads();
    Vec<float, 4> v;
    for (int i = 0; i < 4; ++i) v.v[i] = row[255 - 4 * threadIdx.x - i];
    *reinterpret_cast<Vec<float, 4>*>(y + 4 * threadIdx.x) = v;
""",
        [numbers(256), numbers(256)],
        "",
        launch={"shared_bytes": 1024, "uninitialised": (1,)},
    ),
    "neighbouring bytes written by different threads": Case(
        "const float* x, unsigned char* y",
        """
    ASTITCH_SHARED_ARENA(64);
    ASTITCH_SHARED(unsigned char, flags, 0, 64);
    flags[threadIdx.x] = x[threadIdx.x] > 0.f;
    __syncthreads();
    y[threadIdx.x] = flags[63 - threadIdx.x];
""",
        [numbers(64), np.zeros(64, np.uint8)],
        "",
        launch={"shared_bytes": 64, "uninitialised": (1,)},
    ),
    "atomic counter and sum": Case(
        "const float* x, float* y, unsigned* word",
        """
    atomicAdd(word, 1u);
    atomicAdd(y, float(int(x[threadIdx.x] * 4.f)));
""",
        [numbers(64), np.zeros(1, np.float32), words(1)],
        "",
        grid=5,
    ),
}


def expected(name: str, arrays: Arrays) -> dict[int, np.ndarray]:
    """What the correct kernels compute, by argument."""
    x = arrays[0]
    if name == "two block sums that share a slot":
        centred = x - x.mean(1, keepdims=True)
        return {1: centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)}
    if name == "overlapping slots with disjoint lives":
        reversed_x = np.tile(x[:47:-1], 4)
        return {1: np.stack([reversed_x + i for i in range(3)])}
    if name.startswith("ticket"):
        return {2: np.concatenate([[x.sum()], arrays[2].ravel()[1:]]).reshape(arrays[2].shape)}
    if name.startswith("spin barrier with release"):
        return {1: np.zeros(4), 2: np.full_like(x, x[:, 0].sum())}
    if name.startswith("spin barrier"):
        return {1: x[:, 0], 2: np.full_like(x, x[:, 0].sum())}
    if name.startswith("global barrier"):
        return {1: np.ones(4), 2: np.full_like(x, x[:, 0].sum()), 3: words(1)}
    if name == "shuffles with partial masks":
        return {1: shuffled(x)}
    if name.startswith("halves"):
        return {1: np.stack([x[np.arange(64) ^ 3] * i for i in range(3)])}
    if name.startswith("vector"):
        return {1: x[::-1]}
    if name.startswith("neighbouring"):
        return {1: x[::-1] > 0}
    assert name.startswith("atomic")
    return {1: 5 * np.trunc(x * 4).sum(keepdims=True), 2: np.array([5 * 64])}


def shuffled(x: np.ndarray) -> np.ndarray:
    """The kernel "shuffles with partial masks", lane by lane."""
    result = np.empty_like(x)
    for start in (0, 32):
        v = x[start : start + 32].copy()
        lanes = np.arange(len(v))
        v[:8] = v[:8].sum(dtype=np.float64)
        v[8:16] = v[8]
        down = np.where(lanes % 16 == 15, lanes, lanes + 1)
        up = np.where(lanes % 8 < 2, lanes, lanes - 2)
        v = v + (v[down] + v[up])
        result[start : start + 32] = v + np.count_nonzero(v > 0)
    return result


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernel_passes(name: str, order: Order, check: bool) -> None:
    case = CORRECT[name]
    for seed in range(3 if order is Order.RANDOM else 1):
        arrays = run(case, check, order=order, seed=seed)
        for index, wanted in expected(name, case.arguments).items():
            np.testing.assert_allclose(arrays[index], wanted, rtol=2e-5, atol=2e-5)


def test_twice_in_one_array_is_no_race() -> None:
    """An input that is also the output: each thread reads and writes its own element."""
    case = Case(X_Y, "y[threadIdx.x] = x[threadIdx.x] + 1.f;", [], "")
    x = np.zeros(64, np.float32)
    compile_host(case.source, check=True).launch("k", 1, 64, [x, x])
    np.testing.assert_array_equal(x, np.ones(64))
