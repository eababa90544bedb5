"""BERT and DIEN in TensorFlow: what the models in JAX give; through astitch what XLA gives; their loops as kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from astitch.device.gpu import preset  # noqa: E402
from benchmarks import tf_models  # noqa: E402
from benchmarks.tf_workloads import MODELS, make_model  # noqa: E402
from tests.tf_support import assert_equal, check_stitched  # noqa: E402
from tf_addon.programs import compile_for  # noqa: E402


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_gives_what_it_gives_in_jax(name: str) -> None:
    _, module = MODELS[name]
    size = module.SIZES["tiny"]
    model, batch = make_model(name, "tiny")
    wanted = module.infer(module.make_parameters(0, size), module.make_batch(1, size))
    assert_equal(
        model.infer(batch), tf.nest.map_structure(np.asarray, wanted), rtol=1e-4, atol=1e-5
    )


def test_the_benchmark_measures_both() -> None:
    row = tf_models.measure_overhead("bert", "signature", calls=3)
    assert row.xla_us > 0 and row.astitch_us > 0
    assert row.arrays > 180 and row.launches == 1
    assert f"| bert signature | {row.arrays} | 1 |" in tf_models.show_overheads([row])


def test_gradients_of_loops_are_kernels_too() -> None:
    """Two loops over time, forward and backward."""
    model, batch = make_model("dien", "tiny")
    hlo = model.train_step.experimental_get_compiler_ir(batch)(stage="hlo_serialized")
    compilation = compile_for(hlo, preset("h100"))
    assert len(compilation.loops) == 4
    assert all("turns in one kernel of" in note for note in compilation.loops), compilation.loops
    assert {op.op for op in compilation.program.outside} <= {"scatter"}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_20_steps_have_the_losses_that_xla_has(name: str) -> None:
    def train() -> Any:
        model, batch = make_model(name, "tiny")
        return [model.train_step(batch) for _ in range(20)], model.infer(batch)

    check_stitched(train, rtol=1e-3, atol=1e-4)
