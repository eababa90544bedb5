"""Training loops of JAX's libraries with two lines of astitch's at their top: what they compute, and their kernels."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astitch
from astitch.api import enabling
from astitch.hlo.tile_call import TRITON
from tests.ahead_of_time import compile_ahead, devices, needs_hook

ROOT = Path(__file__).parents[2]

LIBRARIES = {
    "equinox_train": ("equinox", "optax"),
    "flax_linen": ("flax", "optax"),
    "flax_nnx": ("flax", "optax"),
    "keras_jax": ("keras",),
    "optax_train": ("optax",),
}
"""What an example needs besides JAX."""

PTX = "xla.gpu.ptx"

every_example = pytest.mark.parametrize("name", LIBRARIES)


def skip_without_libraries(name: str) -> None:
    if reason := enabling.why_no_hook():
        pytest.skip(reason.partition("\n")[0])
    for library in LIBRARIES[name]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library} (pip install 'astitch[examples]')")


def train(name: str, *, steps: int, how: str, **environment: str) -> dict[str, Any]:
    """What tests/train_example.py says of a training in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.train_example", name, str(steps), how],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert len(found["losses"]) == steps
    assert all(map(math.isfinite, found["losses"]))
    return found


@every_example
def test_without_a_gpu_an_example_trains_as_ever(name: str) -> None:
    skip_without_libraries(name)
    found = train(name, steps=2, how="stitched", JAX_PLATFORMS="cpu")
    assert found["losses"][1] <= found["losses"][0]
    assert found["stitched"] == 0


@every_example
def test_the_two_lines_come_first(name: str) -> None:
    """And nothing else of astitch but the report is in an example."""
    code = (ROOT / "examples" / f"{name}.py").read_text("utf-8").split('"""', 2)[2]
    assert code.strip().startswith("import astitch\n\nastitch.enable()\n")
    assert code.count("astitch") == 3
    assert code.count("print(astitch.report())") == 1


@every_example
def test_an_example_is_short(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text("utf-8").splitlines()
    assert len(list(filter(None, lines))) <= 30


@pytest.mark.gpu
@every_example
def test_on_a_gpu_losses_are_those_of_xla(name: str) -> None:
    """Products in f32 on both sides: else XLA rounds large ones to TF32, but not the small ones inside of kernels."""
    skip_without_libraries(name)
    environment = {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the process of the tests may hold the GPU's memory
    }
    plain = train(name, steps=20, how="plain", **environment)
    if plain["backend"] != "gpu":
        pytest.skip("needs JAX with a CUDA device")
    stitched = train(name, steps=20, how="stitched", **environment)
    assert plain["stitched"] == 0
    assert stitched["stitched"] >= 1
    assert stitched["losses"] == pytest.approx(plain["losses"], rel=1e-3)


# ---- compiled for a GPU that is not here ---------------------------------------------------------------------------


@pytest.fixture
def leave_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples enable astitch for the whole process, and choose Keras' backend."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    yield
    import jax

    enabling.context().set_global(None)
    jax.clear_caches()


def load(name: str) -> Any:
    """An example's module; nothing is stitched but in the blocks of a test."""
    example = importlib.import_module(f"examples.{name}")
    enabling.context().set_global(None)
    return example


def make_rows() -> tuple[Any, Any]:
    import jax.numpy as jnp

    return jnp.zeros((4096, 64)), jnp.zeros((4096, 64))


def equinox_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import equinox as eqx
    import jax

    example = load("equinox_train")
    model = eqx.nn.Sequential(
        [eqx.nn.MLP(64, 64, 256, 2, jax.nn.gelu, key=jax.random.key(1)), eqx.nn.LayerNorm(64)]
    )
    state = example.optimizer.init(eqx.filter(model, eqx.is_array))
    arrays, static = eqx.partition((model, state), eqx.is_array)

    def step(arrays: Any, x: Any, y: Any) -> Any:
        model, state = eqx.combine(arrays, static)
        return eqx.filter(example.train_step(model, state, x, y), eqx.is_array)

    return step, (arrays, *make_rows())


def linen_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import jax
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    example = load("flax_linen")
    x = jnp.zeros((32, 128, 64))
    params = example.Block().init(jax.random.key(1), x)
    make: Any = TrainState.create
    state = make(apply_fn=example.Block().apply, params=params, tx=optax.adamw(1e-3))
    return example.train_step, (state, x, x)


def nnx_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import optax
    from flax import nnx

    example = load("flax_nnx")
    model = example.make_model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss = example.train_step(model, optimizer, x, y)
        return nnx.state((model, optimizer)), loss

    return step, (state, *make_rows())


def keras_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("other tests of this process may want Keras on TensorFlow")
    example = load("keras_jax")
    model = example.make_model()
    x, y = np.zeros((32, 128, 64), "float32"), np.zeros(32, "int32")
    model.optimizer.build(model.trainable_variables)
    kept = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([v.value for v in variables] for variables in (*kept, model.metrics_variables))

    def step(state: Any, x: Any, y: Any) -> Any:
        return model.train_step(state, (x, y))

    return step, (state, x, y)


def optax_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import jax.numpy as jnp

    example = load("optax_train")
    params = {"wide": jnp.zeros((256, 1024)), "narrow": jnp.zeros((1024, 256))}
    x, y = jnp.zeros((1024, 256)), jnp.zeros(1024, "int32")
    return example.train_step, (params, example.optimizer.init(params), x, y)


STEPS = {
    "equinox_train": equinox_step,
    "flax_linen": linen_step,
    "flax_nnx": nnx_step,
    "keras_jax": keras_step,
    "optax_train": optax_step,
}


@needs_hook
@every_example
def test_a_training_step_has_stitched_kernels(name: str, leave_it_as_it_was: None) -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    skip_without_libraries(name)
    step, arguments = STEPS[name]()
    place = SingleDeviceSharding(devices()[0])

    def describe(leaf: Any) -> Any:
        kind = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=place)

    given = jax.tree.map(describe, arguments)
    assert compile_ahead(step, *given).as_text().count(PTX) == 0
    with astitch.enabled():
        text = compile_ahead(step, *given).as_text()
    kernels = text.count(PTX) + text.count(TRITON)  # attention's are Triton IR
    assert text.count(PTX) >= 1
    assert astitch.report().programs[-1].kernels == kernels
