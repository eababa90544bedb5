"""Who is measured: astitch, jax.jit, torch.compile, Liger, each as a Runner on the same arguments.

Takes a Case and its JAX arguments, hands on Runners, and a note for each peer that cannot run it.  A peer's package is
imported only when it is asked for; torch reads the arguments where JAX put them.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from astitch.profiling.timing import Runner
from benchmarks.patterns import Case
from benchmarks.timing import hold_cupy, hold_xla

PEERS = ("xla", "xla-donated", "torch", "torch-max", "liger")
DEFAULT_PEERS = ("xla", "xla-donated", "torch", "liger")

XLA_PEERS = ("xla", "xla-donated")

TORCH_MODES = {"torch": "default", "torch-max": "max-autotune-no-cudagraphs"}


class NotMeasured(Exception):
    """Why a runner cannot be had for a case."""


def missing_packages(peers: Sequence[str]) -> dict[str, str]:
    """The peers that are not installed here, each with what it lacks."""
    needs = {"torch": ("torch",), "torch-max": ("torch",), "liger": ("torch", "liger_kernel")}
    lacking = {}
    for peer in peers:
        absent = [p for p in needs.get(peer, ()) if importlib.util.find_spec(p) is None]
        if absent:
            lacking[peer] = f"no {' and no '.join(absent)} here"
    return lacking


def prepare_runner(peer: str, case: Case, arguments: Sequence[jax.Array]) -> Runner:
    """Raises NotMeasured for a peer that has no form of the case."""
    match peer:
        case "xla":
            return prepare_xla(case, arguments)
        case "xla-donated":
            return prepare_xla_donated(case, arguments)
        case "torch" | "torch-max":
            return prepare_torch(peer, case, arguments)
        case "liger":
            return prepare_liger(case, arguments)
    raise NotMeasured(f"there is no peer {peer!r}; the peers are {', '.join(PEERS)}")


# ---- astitch -----------------------------------------------------------------------------------------------------


def compile_astitch(case: Case, arguments: Sequence[jax.Array]) -> Any:
    """The compiled function."""
    import astitch

    return astitch.jit(case.fn).lower(*arguments).compile()


def list_other_ops(program: Any) -> list[str]:
    """The ops that no emitted kernel and no library computes, each once."""
    return sorted({op.op for op in program.outside})


def prepare_astitch(compiled: Any, arguments: Sequence[jax.Array]) -> tuple[Runner, Runner]:
    """The program alone (arguments on the device in, new arrays out), and the call of the compiled function.  The
    latter has JAX arrays for results: what a user of astitch.jit sees.
    """
    import cupy

    from astitch.run.executor import GpuExecutor

    executor = GpuExecutor(compiled.program)

    def run() -> Any:
        return executor.run(arguments)

    def wait(_: Any) -> None:
        cupy.cuda.get_current_stream().synchronize()

    def wait_for_both(results: Any) -> None:
        """Of the engines of astitch.jit one runs on CuPy's stream, one on XLA's."""
        wait(results)
        jax.block_until_ready(results)

    program = Runner(
        "astitch",
        run,
        wait,
        lambda results: [array.to_jax() for array in results],
        hold_cupy,
    )
    hold = hold_cupy if getattr(compiled, "jax_compiled", None) is None else hold_xla
    return program, Runner(
        "astitch.jit", lambda: compiled(*arguments), wait_for_both, jax.tree.leaves, hold
    )


# ---- XLA ---------------------------------------------------------------------------------------------------------


def prepare_xla(case: Case, arguments: Sequence[jax.Array]) -> Runner:
    jitted = jax.jit(case.fn)

    def run() -> Any:
        return jitted(*arguments)

    return Runner("xla", run, jax.block_until_ready, jax.tree.leaves, hold_xla)


def prepare_xla_donated(case: Case, arguments: Sequence[jax.Array]) -> Runner:
    """Each call overwrites the state that the one before it left."""
    donate = case.built.donate
    if not donate:
        raise NotMeasured("nothing to donate")
    jitted = jax.jit(case.fn, donate_argnums=donate)
    state = list(arguments)
    for position in donate:
        state[position] = arguments[position].copy()

    def run() -> Any:
        results = jax.tree.leaves(jitted(*state))
        for position, result in zip(donate, results, strict=True):
            state[position] = result
        return results

    return Runner("xla-donated", run, jax.block_until_ready, list, hold_xla)


# ---- torch and Liger ---------------------------------------------------------------------------------------------


def hand_to_torch(case: Case, arguments: Sequence[jax.Array]) -> list[Any]:
    """The same memory as torch tensors; indices as int64, which torch asks for; None for a threefry key."""
    import torch

    jax.block_until_ready(arguments)
    tensors: list[Any] = []
    for array, argument in zip(arguments, case.arguments, strict=True):
        if argument.draw == "key":
            tensors.append(None)
        else:
            tensor = torch.from_dlpack(array)
            tensors.append(tensor.long() if argument.draw == "index" else tensor)
    return tensors


def flatten_torch(results: Any) -> list[Any]:
    """Tensors as JAX arrays on the same memory; f8, which travels as bytes, is named again."""
    import torch

    flat = [results] if isinstance(results, torch.Tensor) else list(results)
    arrays = []
    for tensor in flat:
        tensor = tensor.detach().contiguous()
        if tensor.dtype is torch.float8_e4m3fn:
            words = jax.dlpack.from_dlpack(tensor.view(torch.uint8))
            arrays.append(jax.lax.bitcast_convert_type(words, jax.numpy.float8_e4m3fn))
        else:
            arrays.append(jax.dlpack.from_dlpack(tensor))
    return arrays


def _run_torch(name: str, call: Callable[[], Any]) -> Runner:
    import torch

    def run() -> Any:
        with torch.no_grad():
            return call()

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    return Runner(name, run, wait, flatten_torch, hold_cupy)


def prepare_torch(peer: str, case: Case, arguments: Sequence[jax.Array]) -> Runner:
    import torch

    from benchmarks import torch_patterns

    function = getattr(torch_patterns, case.pattern)
    tensors = hand_to_torch(case, arguments)
    if case.pattern in torch_patterns.EAGER:  # it overwrites its arguments
        tensors = [t.clone() for t in tensors]
    else:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, dynamic=False, mode=TORCH_MODES[peer])
    return _run_torch(peer, lambda: function(*tensors))


def prepare_liger(case: Case, arguments: Sequence[jax.Array]) -> Runner:
    from benchmarks import liger_patterns

    prepare = getattr(liger_patterns, f"prepare_{case.pattern}", None)
    if prepare is None:
        raise NotMeasured("Liger has no such function")
    return _run_torch("liger", prepare(*hand_to_torch(case, arguments)))


def release_memory() -> None:
    """What the last case left in the pools goes back to the device."""
    gc.collect()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
