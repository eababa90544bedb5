"""How long products take, as XLA's scheduler is told."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.hlo import schema
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
