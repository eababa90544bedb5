"""Plans of large shapes and whole modules, and the form that XLA launches, as they are stored in tests/golden.

What differs is shown as a diff.  Where that is wanted: `python -m tests.snapshots write tests/golden/snapshots`, and
`pytest tests/whole/test_snapshots.py --update-golden` for the modules of XLA.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import large_shapes, programs
from tests.snapshots import (
    EMITTED_FOR,
    GPUS,
    hash_emitted,
    real_modules,
    show_difference,
    show_for_xla,
    show_plans,
    split_sections,
)

GOLDEN = Path(__file__).parents[1] / "golden"

SOON_PLANNED = (
    "bert_infer bert_infer_bf16_erfgelu bert_layer_fwd crnn_infer dien_infer tf_keras_infer"
)
"""Whole modules that are planned within a second; the others by command."""

LONG_PLANNED = ("clip_adam_full_f32", "clip_adam_medium_bf16")
"""Large shapes that take as long as all others together: a GPU has at most one of them here, by command both."""


def list_planned(gpu: str) -> list[str]:
    """The modules that are planned here for a GPU: all, or every fourth for one that is much like another; by command
    all."""
    number = GPUS.index(gpu)
    left_out = LONG_PLANNED[number % 2]
    names = [n for n in (*large_shapes.LARGE, *SOON_PLANNED.split()) if n != left_out]
    return names if gpu in EMITTED_FOR else names[number % 4 :: 4]


XLA_FORMS = {
    "layer_norm_backward": "blocks meet, and a result takes over an argument",
    "adam_with_clip": "blocks meet, with a table of pointers",
    "sgd_momentum": "results over donated parameters",
    "gradient_of_a_table": "a scatter whose order is fixed",
    "lstm_scan": "a loop that is one kernel",
    "newton_loop": "a loop that turns as often as an argument says",
    "branches": "a conditional",
    "bert_layer": "products between kernels",
    "softmax_long_full_f32": "block groups",
}
"""Programs, by what their form for XLA shows."""


@pytest.mark.parametrize("gpu", GPUS)
def test_plans(gpu: str) -> None:
    stored = split_sections((GOLDEN / "snapshots" / f"plans_{gpu}.txt").read_text())
    assert set(stored) == {*large_shapes.LARGE, *real_modules()}
    lines = []
    for name in list_planned(gpu):
        lines += show_difference(stored[name], show_plans(name, gpu), f"{name} for {gpu}")
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("name", XLA_FORMS)
def test_what_xla_launches(name: str, update_golden: bool) -> None:
    path = GOLDEN / "xla" / f"{name}.txt"
    text = show_for_xla(name, "h100") + "\n"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    if lines := show_difference(path.read_text(), text, f"{name} for XLA"):
        pytest.fail("\n".join(lines), pytrace=False)


def test_emitted_text() -> None:
    """Of every tenth program for each GPU; by command of all."""
    lines = (GOLDEN / "snapshots" / "emitted.txt").read_text().splitlines()
    stored = {tuple(line.split()[:2]): line for line in lines}
    names = [*programs.PROGRAMS, *large_shapes.LARGE]
    assert set(stored) == {(n, gpu) for n in [*names, *real_modules()] for gpu in EMITTED_FOR}
    differing = [
        f"{name} for {gpu}"
        for number, gpu in enumerate(EMITTED_FOR)
        for name in names[number::10]
        if stored[name, gpu] != f"{name} {gpu} {hash_emitted(name, gpu)}"
    ]
    assert differing == [], "the text, the steps or the module for XLA (the three hashes)"


def test_no_xla_form_is_left_over() -> None:
    assert {path.stem for path in (GOLDEN / "xla").iterdir()} == set(XLA_FORMS)
