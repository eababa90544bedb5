"""Memory of ours that JAX reads: who writes it again waits for JAX's stream; JAX's CPU stands for its GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import stepped_programs as programs

from astitch import lending
from astitch.executor import GpuExecutor
from astitch.lending import Lent, last_returned, wait_for_jax


def test_that_jax_let_go_is_known_before_the_memory_is_free() -> None:
    class Memory:
        def __del__(self) -> None:
            seen.append(last_returned())

    seen: list[int] = []
    before, lent = last_returned(), Lent(Memory())
    assert last_returned() == before and not seen
    del lent
    assert seen == [last_returned()] != [before]


@pytest.mark.parametrize("knows_streams", [True, False])
def test_a_stream_waits_for_what_jax_enqueued_last(
    knows_streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Last:
        def __dlpack__(self, *, stream: int) -> None:
            asked.append(stream)
            if not knows_streams:
                raise RuntimeError("UNIMPLEMENTED")

        def block_until_ready(self) -> None:
            asked.append("ready")

    class Executable:
        def execute_sharded(self, operands: list[Any]) -> Executable:
            asked.append(operands)
            return self

        def disassemble_into_single_device_arrays(self) -> list[list[Last]]:
            return [[Last()]]

    monkeypatch.setattr(lending, "_make_marker", lambda _: (Executable(), ["token"]))
    for stream, name in (0, 1), (77, 77):
        asked.clear()
        wait_for_jax(0, stream)
        assert asked == [["token"], name] + ([] if knows_streams else ["ready"])


@pytest.mark.parametrize("traced", [False, True])
def test_the_marker_is_computed_where_jax_computes(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    def wait(x: Any) -> Any:
        wait_for_jax(0, 0)
        return x + 1

    cpu = jax.devices("cpu")[0]
    monkeypatch.setattr(lending, "_make_marker", lending._make_marker.__wrapped__)
    monkeypatch.setattr(lending, "find_device", lambda *_: cpu)
    assert (jax.jit(wait) if traced else wait)(np.float32(1)) == 2
    executable, operands = lending._make_marker(0)
    ((last,),) = executable.execute_sharded(operands).disassemble_into_single_device_arrays()
    assert last.devices() == {cpu}


def test_without_jax_s_gpu_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_make_marker", lending._make_marker.__wrapped__)
    monkeypatch.setattr(lending, "find_device", lambda *_: None)
    wait_for_jax(0, 0)


@pytest.mark.gpu
def test_results_that_jax_still_reads_are_written_later() -> None:
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")

    @jax.jit
    def work_long(a: Any) -> Any:
        return jax.lax.fori_loop(0, 30, lambda _, a: jnp.tanh(a @ a), a)

    read = jax.jit(lambda y: y + 1)
    executor = GpuExecutor(programs.scale_program())
    x, busy = np.ones((10, 20), np.float32), jnp.ones((4096, 4096))
    read(executor.run_to_jax([x])[0]), work_long(busy).block_until_ready()
    for turn in range(10):
        results = executor.run_to_jax([turn * x])
        long = work_long(busy)  # what reads the result comes behind it
        found = read(results[0])
        del results
        again = executor.run_to_jax([x * 1000])
        np.testing.assert_array_equal(np.asarray(found), 3 * turn * x + 1)
        np.testing.assert_array_equal(np.asarray(again[0]), 3000 * x)
        del long, again
