"""check=True on a GPU: kernels that are right pass, one that is broken is found."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astitch
from astitch.api import enabling, transformation
from astitch.errors import ResultMismatch
from astitch.faults import FaultWarning
from astitch.xla import kept_stitchings
from astitch.xla.module_cache import cache_at
from tests.xla.test_enabling import break_kernels, layer_norm

pytestmark = [pytest.mark.gpu, pytest.mark.xla_hook]


@pytest.fixture(autouse=True)
def leave_it_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    import jax

    monkeypatch.setattr(kept_stitchings, "open_cache", lambda: cache_at(tmp_path / "modules"))

    monkeypatch.delenv("ASTITCH_FAULTS")
    transformation.journal.clear()
    jax.clear_caches()
    yield
    enabling.context().set_global(None)
    jax.clear_caches()


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def arguments() -> tuple[Any, ...]:
    import jax.numpy as jnp

    return jnp.asarray(normal(256, 512)), jnp.ones(512), jnp.zeros(512)


def loss(x: Any, g: Any, b: Any) -> Any:
    return (layer_norm(x, g, b) ** 3).sum()


def test_right_kernels_pass() -> None:
    import jax

    def step(p: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda p: loss(x, *p))(p)
        return jax.tree.map(lambda a, s: a - 1e-3 * s, p, slopes), value

    x, *p = arguments()
    with astitch.enabled(check=True), warnings.catch_warnings():
        warnings.simplefilter("error", FaultWarning)
        jitted = jax.jit(step, donate_argnums=0)
        for _ in range(4):
            before, (p, _) = p, jitted(p, x)
            assert all(a.is_deleted() for a in before)
    checks = [c for c in astitch.report().checks if c.name == "jit_step"]
    assert [c.calls for c in checks] == [4] and not checks[0].differences


def test_a_broken_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    want = jax.jit(layer_norm)(*arguments())
    break_kernels(monkeypatch)
    with astitch.enabled(check=True), pytest.warns(FaultWarning, match="result 0, float32"):
        got = jax.jit(layer_norm)(*arguments())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    with astitch.enabled(check=True, strict=True), pytest.raises(ResultMismatch, match="differ"):
        jax.jit(layer_norm)(*arguments())


def test_prints_happen_once(capfd: pytest.CaptureFixture[str]) -> None:
    import jax

    def f(x: Any) -> Any:
        y = layer_norm(x, 1, 0)
        jax.debug.print("the first is {}", y[0, 0])
        return y * 2

    with astitch.enabled(check=True):
        jax.jit(f)(arguments()[0])
        jax.effects_barrier()
    assert capfd.readouterr().out.count("the first is") == 1
    assert "would happen twice" in str(astitch.report())


def test_a_program_of_several_gpus() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if jax.local_device_count() < 2:
        pytest.skip("needs two GPUs")
    place = NamedSharding(Mesh(np.array(jax.local_devices()[:2]), "d"), PartitionSpec("d"))
    x, g, b = arguments()
    with astitch.enabled(check=True), warnings.catch_warnings():
        warnings.simplefilter("error", FaultWarning)
        jax.jit(jax.grad(loss, argnums=(0, 1)))(jax.device_put(x, place), g, b)
    (check,) = (c for c in astitch.report().checks if c.name == "jit_loss")
    assert check.calls == 1 and not check.differences
