"""Forms of CUDA texts: names do not count, everything else does; kernels of one form share a cubin."""

from __future__ import annotations

import re
import threading

import jax
import jax.numpy as jnp
import pytest
from hlo_runner import lower

from astitch.compile import compile_hlo
from astitch.toolchain import nvrtc
from astitch.toolchain.kernel_cache import KernelCache, compile_cached
from astitch.toolchain.kernel_text import share_text
from astitch.toolchain.nvrtc import CompiledKernel, Request

TEXT = """#include "astitch.cuh"
// stitch_7: of layer 1
struct Sum { float f0; };
extern "C" __global__ void __launch_bounds__(256) stitch_7(
    const float* __restrict__ p_offset_1, float* __restrict__ p_add) {
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(float, offset_1_now_0, 0, 16);
  const int at = blockIdx.x * 256 + threadIdx.x;
  Sum offset_1_sum; offset_1_sum.f0 = 0.0f;
  for (int k = 0; k < 4; ++k) {
    const float offset_1 = p_offset_1[at];  // "a // comment"
    offset_1_now_0[k] = offset_1;
    offset_1_sum.f0 = hlo_add(offset_1_sum.f0, offset_1);
  }
  p_add[at] = hlo_multiply(offset_1_sum.f0, 1e-12f);
}
"""


def rename(text: str, **names: str) -> str:
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


OTHER_LAYER = rename(
    TEXT.replace("layer 1", "layer 12\n//   jit(f)/add"),
    stitch_7="stitch_13",
    p_offset_1="p_gamma_0",
    p_add="p_add_565",
    offset_1="gamma",
    offset_1_now_0="gamma_now_0",
    offset_1_sum="gamma_sum",
)


def test_names_and_comments_do_not_count():
    first, second = share_text(TEXT), share_text(OTHER_LAYER)
    assert first.form == second.form
    (symbol,) = first.symbols.values()
    assert first.symbols == {"stitch_7": symbol} and second.symbols == {"stitch_13": symbol}
    assert f" {symbol}(" in first.source and f" {symbol}(" in second.source
    assert "p_gamma_0" in second.source, "the text that is compiled can still be read"


CHANGES = {
    "a number": ("1e-12f", "1e-13f"),
    "a sign": ("++k", "--k"),
    "a function": ("hlo_multiply", "hlo_divide"),
    "a type": ("const float offset_1", "const double offset_1"),
    "a pragma": ("  for (", "#pragma unroll\n  for ("),
    "the launch bound": ("(256)", "(128)"),
    "which variable": ("hlo_add(offset_1_sum.f0, offset_1)", "hlo_add(offset_1, offset_1_sum.f0)"),
    "a word of CUDA": ("threadIdx.x", "blockDim.x"),
    "a member": ("blockIdx.x", "blockIdx.y"),
    "the order of parameters": (
        "const float* __restrict__ p_offset_1, float* __restrict__ p_add",
        "float* __restrict__ p_add, const float* __restrict__ p_offset_1",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_no_name_counts(what):
    old, new = CHANGES[what]
    assert old in TEXT
    assert share_text(TEXT.replace(old, new, 1)).form != share_text(TEXT).form


def test_two_variables_do_not_become_one():
    two = TEXT.replace("hlo_add(offset_1_sum.f0, offset_1)", "hlo_add(offset_1_sum.f0, float(k))")
    same = rename(two.replace("float(k)", "float(at)"))
    assert share_text(two).form != share_text(same).form


def test_what_the_headers_call_a_name_is_left_alone():
    word = next(iter(re.findall(r"hlo_\w+", nvrtc.read_headers()["hlo_math.cuh"])))
    assert share_text(rename(TEXT, offset_1=word)).form != share_text(TEXT).form


def test_words_of_an_entry_are_named_after_it():
    words = TEXT.replace("extern", "__device__ unsigned int stitch_7_words[2];\nextern", 1)
    shared = share_text(words)
    assert f"{shared.symbols['stitch_7']}_words[2]" in shared.source
    assert "stitch_7" not in shared.source.replace("// stitch_7", "")


def test_layers_share_their_cubins(tmp_path, monkeypatch):
    def layers(x, w):
        for _ in range(6):
            x = jax.nn.softmax(x @ w)
        return x

    arguments = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 128), (128, 128))]
    kernels = compile_hlo(lower(layers, *arguments), gpu="h100").program.kernels
    assert len(kernels) == 6
    asked = []
    compile_request = nvrtc.compile_request

    def counted(request: Request) -> CompiledKernel:
        asked.append(request)
        return compile_request(request)

    monkeypatch.setattr(nvrtc, "compile_request", counted)
    cache = KernelCache(tmp_path)
    compiled = nvrtc.compile_many_cuda(
        [Request(kernel.source, "sm_90") for kernel in kernels],
        compile_one=lambda request: compile_cached(request, cache=cache),
        threads=4,
    )
    assert len(asked) == 1, "even where several threads want it at once"
    for kernel, found in zip(kernels, compiled, strict=True):
        assert set(found.kernels) == {kernel.name}
        assert f".entry {found.symbol(kernel.name)}(" in found.ptx.decode()
        assert found.cubin == compiled[0].cubin
        assert found.kernels[kernel.name] == compiled[0].kernels[kernels[0].name]


def test_a_refused_text_is_shown_as_it_was_written(tmp_path):
    broken = TEXT.replace("p_offset_1[at]", "p_offset_1[at")
    with pytest.raises(
        nvrtc.KernelCompileError, match=re.escape("const float offset_1 = p_offset_1[at;")
    ):
        compile_cached(Request(broken, "sm_90"), cache=KernelCache(tmp_path))
    # The turn is given back.
    done = threading.Thread(target=compile_twice, args=(broken, tmp_path))
    done.start()
    done.join(timeout=60)
    assert not done.is_alive()


def compile_twice(text: str, folder) -> None:
    for _ in range(2):
        with pytest.raises(nvrtc.KernelCompileError):
            compile_cached(Request(text, "sm_90"), cache=KernelCache(folder))
