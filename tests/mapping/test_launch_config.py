"""Assume - relax - apply: the numbers for three generations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.device.gpu import PRESETS, preset
from astitch.mapping.launch_config import LaunchConfig, configure_launch


@pytest.mark.parametrize(
    ("gpu", "block", "assumed", "blocks_per_sm", "registers", "wave"),
    [
        ("v100", 1024, 32, 2, 32, 160),  # the paper's
        ("v100", 512, 64, 2, 64, 160),
        ("v100", 256, 64, 4, 64, 320),
        ("t4", 1024, 32, 1, 64, 40),
        ("t4", 512, 64, 2, 64, 80),
        ("t4", 256, 64, 4, 64, 160),
        ("h100", 1024, 64, 1, 64, 132),
        ("h100", 512, 64, 2, 64, 264),
        ("h100", 256, 64, 4, 64, 528),
        ("h100", 256, 200, 1, 255, 132),
        ("h100", 128, 128, 4, 128, 528),
        ("h100", 384, 64, 2, 80, 264),  # relaxed: 170 threads' worth of registers would idle
    ],
)
def test_the_numbers(
    gpu: str, block: int, assumed: int, blocks_per_sm: int, registers: int, wave: int
) -> None:
    launch = configure_launch(preset(gpu), block, assumed=assumed)
    assert (launch.blocks_per_sm, launch.registers, launch.wave) == (blocks_per_sm, registers, wave)
    assert launch.block == block


def test_shared_memory_takes_part() -> None:
    """The paper: assumed 32 registers and 1024 threads, but 48 KB or 96 KB of shared memory a block."""
    v100 = preset("v100")
    assert configure_launch(v100, 512, 48 * 1024, 32).blocks_per_sm == 2
    one = configure_launch(v100, 512, 96 * 1024, 32)
    assert (one.blocks_per_sm, one.wave, one.registers) == (1, 80, 128)


def test_a_block_that_does_not_fit_is_still_one() -> None:
    assert configure_launch(preset("v100"), 1024, assumed=128).blocks_per_sm == 1


def test_the_reason_has_the_three_steps() -> None:
    assert configure_launch(preset("h100"), 512) == LaunchConfig(
        512,
        2,
        64,
        264,
        "assumed 64 registers: 2 blocks of 512 threads an SM; relaxed to 64 registers; "
        "applied as launch bounds (512, 2): 264 blocks a wave",
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from((32, 64, 128, 256, 512, 1024)),
    st.integers(0, 64 * 1024),
    st.integers(16, 64),
)
def test_relaxed_registers_keep_the_residency_and_are_the_most_that_do(
    name: str, block: int, shared_bytes: int, assumed: int
) -> None:
    gpu = preset(name)
    launch = configure_launch(gpu, block, shared_bytes, assumed)
    assert launch.registers >= assumed
    assert gpu.blocks_per_sm(block, launch.registers, shared_bytes) >= launch.blocks_per_sm
    assert launch.wave == gpu.wave(block, launch.registers, shared_bytes)
    more = launch.registers + 8
    if more <= gpu.max_registers_per_thread:
        assert gpu.blocks_per_sm(block, more, 0) < launch.blocks_per_sm
