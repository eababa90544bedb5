"""How long products take, as XLA's scheduler is told."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from astitch.device.gpu import preset
from astitch.hlo import schema
from astitch.hlo.attention import FORWARD, GRADIENT
from astitch.hlo.tile_call import TRITON
from astitch.xla import hook
from astitch.xla.tell_latencies import tell_latencies
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook
from tests.exchanges import read_compiled, read_exchanges, sum_hidden
from tests.jax_programs import lower_for_cuda
from tests.xla.test_several_devices import sum_planned

LATENCY = b"latency_metadata"
F32, BF16 = 11, 16


def make_module(rows: int, depth: int, columns: int, collective: bytes, type_: int = BF16) -> Any:
    """bf16[rows, depth] @ bf16[depth, columns], and a collective of the result."""
    module = schema.HloModuleProto()
    computation = module.computations.add(id=1)
    for number, shape in enumerate([(rows, depth), (depth, columns)]):
        added = computation.instructions.add(id=number, opcode=b"parameter")
        added.shape.element_type = type_
        added.shape.dimensions.extend(shape)
    dot = computation.instructions.add(id=2, opcode=b"dot", operand_ids=[0, 1])
    dot.shape.element_type = F32
    dot.shape.dimensions.extend((rows, columns))
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    computation.instructions.add(id=3, opcode=collective, operand_ids=[2], shape=dot.shape)
    return module


def read_told(module: Any) -> list[float]:
    """us"""
    return [
        int(entry.value) / 1e3
        for computation in module.computations
        for instruction in computation.instructions
        for entry in instruction.frontend_attributes.map
        if entry.key == LATENCY
    ]


def test_a_product_tells_what_its_operations_take():
    module = make_module(4096, 8192, 4096, b"all-reduce")
    tell_latencies(module, preset("h100"))
    (us,) = read_told(module)
    assert math.isclose(us, 2 * 4096 * 8192 * 4096 / 990e6, rel_tol=0.02)


def test_a_small_product_tells_what_its_bytes_and_its_launch_take():
    module = make_module(1 << 20, 16, 16, b"all-gather")
    gpu = preset("h100")
    tell_latencies(module, gpu)
    (us,) = read_told(module)
    moved = (1 << 20) * (2 * 16 + 4 * 16)
    assert math.isclose(us, moved / gpu.bandwidth_gbs / 1e3 + gpu.launch_us, rel_tol=0.1)


def test_a_product_that_tells_it_already_keeps_it():
    module = make_module(64, 64, 64, b"all-reduce")
    module.computations[0].instructions[2].frontend_attributes.map.add(key=LATENCY, value=b"7000")
    tell_latencies(module, preset("h100"))
    assert read_told(module) == [7.0]


@pytest.mark.parametrize(
    ("gpu", "collective"),
    [("h100", b"negate"), ("a100", b"all-reduce"), ("h100", b"ragged-all-to-all")],
)
def test_a_product_tells_nothing_where_xla_reckons_otherwise(gpu, collective):
    module = make_module(64, 64, 64, collective)
    tell_latencies(module, preset(gpu))
    assert read_told(module) == []


@needs_hook
def test_more_work_is_beside_collectives_in_no_more_memory():
    """XLA's own times of products are far too long here: they left a fifth more memory in use."""
    from benchmarks.sharded_transformer import SIZES, make_training

    training = make_training(devices(8), "tensor", SIZES["tiny"], "bfloat16")
    options = {"donate_argnums": (0,), "out_shardings": training.results}
    plain = compile_ahead(training.fn, *training.shape(), **options)
    with hooked():
        stitched = compile_ahead(training.fn, *training.shape(), **options)
    fusions = [
        instruction
        for computation in read_compiled(stitched).computations
        for instruction in computation.instructions
        if instruction.opcode == b"fusion" and b"gemm" in instruction.backend_config
    ]
    told = [f for f in fusions if any(e.key == LATENCY for e in f.frontend_attributes.map)]
    assert len(told) > len(fusions) / 2  # XLA keeps it where it fuses a product
    planned = [sum_planned(c.memory_analysis()) for c in (plain, stitched)]
    assert planned[1] <= 1.02 * planned[0]
    hidden = [sum_hidden(read_exchanges(c, preset(GPU))) for c in (plain, stitched)]
    assert hidden[1] >= hidden[0]


def attend(x: Any, w: Any) -> Any:
    """A loss of one attention; the gradient of w is summed over the devices."""
    q = (x @ w).reshape(*x.shape[:2], 8, 64)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, q).astype(jnp.float32) * 0.125
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), q)
    return jnp.square(mixed.astype(jnp.float32)).mean()


def train_narrow(x: Any, w: Any) -> Any:
    """A narrow network, of whose rows a kernel of ours computes several layers."""
    for layer in w:
        x = jax.nn.relu(x @ layer)
    return jnp.square(x.astype(jnp.float32)).mean()


def decode(x: Any, w: Any) -> Any:
    """Few rows, layers in a scan; each layer's results are summed over the devices."""

    def turn(h: Any, layer: Any) -> tuple[Any, None]:
        return h + jnp.tanh(jax.lax.psum(h @ layer, "d")), None

    return jax.lax.scan(turn, x, w)[0]


def read_calls(compiled: Any) -> list[list[float]]:
    """What each call of cuDNN or of a tile program tells, us."""
    return [
        [int(e.value) / 1e3 for e in i.frontend_attributes.map if e.key == LATENCY]
        for computation in read_compiled(compiled).computations
        for i in computation.instructions
        if i.custom_call_target.decode() in (TRITON, *FORWARD, *GRADIENT)
    ]


@needs_hook
@pytest.mark.parametrize(
    ("fn", "x", "w"),
    [
        (attend, (16, 1024, 512), (512, 512)),
        (train_narrow, (1 << 18, 64), (4, 64, 64)),
        (decode, (4, 1536), (3, 1536, 1536)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_calls_of_attention_and_of_narrow_products_tell_their_time(fn, x, w):
    told = read_calls(compile_split(fn, x, w, 2))
    assert told
    # A launch takes 2 us; memory moves 16 MB in 5.
    assert all(len(times) == 1 and times[0] > 2 for times in told)
    if fn is not decode:  # whose sum over one device is a collective too
        alone = read_calls(compile_split(fn, x, w, 1))
        assert len(alone) == len(told) and not any(alone)


def compile_split(fn: Any, x: Any, w: Any, count: int) -> Any:
    """The gradient with the batch split; a decoder with its weights whole.  In bf16."""
    mesh = Mesh(np.array(devices(count)), ("d",))

    def array(shape: Any, *spec: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    whole = PartitionSpec()
    with hooked():
        if fn is decode:
            split = jax.shard_map(
                fn, mesh=mesh, in_specs=(whole, whole), out_specs=whole, check_vma=False
            )
            return compile_ahead(split, array(x), array(w))
        return compile_ahead(jax.grad(fn, 1), array(x, "d"), array(w))


def test_an_error_costs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise KeyError("no such operand")

    monkeypatch.setattr(hook, "tell_latencies", fail)
    monkeypatch.setenv("ASTITCH_FAULTS", "")
    data = lower_for_cuda(jax.nn.softmax, [np.zeros((512, 512), np.float32)])
    stitching = hook.stitch_module(hook.read_module(data), preset("h100"))
    assert stitching.kernels == 1
    (fault,) = stitching.compilation.faults
    assert fault.stage == "tell_latencies"
