"""Time by layer of the model."""

from __future__ import annotations

import pytest

from astitch.profiling.layers import ELSEWHERE, layers_of, name_layer, tabulate_layers
from astitch.profiling.report import MEMORY, Kernel, Machine, Report, Side


@pytest.mark.parametrize(
    ("place", "layer"),
    [
        ("m.py:4 jit(step)/jvp(Model)/Block_0/Dense_1/dot_general", "Model/Block_0/Dense_1"),
        ("m.py:4 jit(step)/transpose(jvp(Model))/Block_0/mul", "Model/Block_0"),
        ("m.py:4 jit(step)/jvp()/mul", "m.py:4"),
        ("/usr/lib/m.py:4 jit(f)/jit(softmax)/exp", "m.py:4"),
        ("m.py:4 jit(f)/while/body/Cell_0/tanh", "Cell_0"),
        ("m.py:4 jit(f)/a/b/c/d/e/tanh", "a/b/c/d"),
        ("m.py:4 jit(f)/jvp(Attention)/value/abc,cde->abde/dot_general", "Attention/value"),
        ("m.py:4 jit(f)/Attention/transpose(jvp(...qk,...kd))/dot_general", "Attention"),
        ("m.py:4 jit(f)/ii->i/mul", "m.py:4"),
        ("m.py:4 jit(f)/call.3/eval_jaxpr/while/body/closed_call/add", "m.py:4"),
        ("broadcast.5", ELSEWHERE),
    ],
)
def test_names(place: str, layer: str) -> None:
    assert name_layer(place) == layer


MACHINE = Machine("h100", "h100", 132, 3000.0, 60000.0, 0.8)


def kernel(name: str, us: float, *source: str) -> Kernel:
    return Kernel(name, MEMORY, 2.0, us=us, projected_us=us, bound_us=us, source=source)


def test_a_kernel_is_divided_among_its_layers() -> None:
    both = kernel(
        "k", 9.0, "m.py:1 jit(f)/A/mul", "m.py:1 jit(f)/A/add", "m.py:2 jit(f)/B/exp", "iota.1"
    )
    assert layers_of(both) == {"A": 2, "B": 1}
    alone = kernel("l", 5.0, "m.py:2 jit(f)/B/exp;jit(f)/B/mul")
    report = Report(
        "t",
        "d",
        "static",
        MACHINE,
        Side("xla", kernels=(both, alone)),
        Side("astitch", kernels=(both,)),
    )
    first, second = tabulate_layers(report)
    assert (first.name, first.xla_us, first.astitch_us) == ("B", 8.0, 3.0)
    assert (second.name, second.xla_us, second.xla_launches) == ("A", 6.0, 2.0)
    text = report.to_text()
    assert "Layers, speed of light" in text
    assert '<section id="layers"' in report.to_html()


def test_without_names_there_is_no_table() -> None:
    side = Side("xla", kernels=(kernel("k", 1.0),))
    report = Report("t", "d", "static", MACHINE, side, Side("astitch"))
    assert "Layers" not in report.to_text()


def test_a_side_that_is_not_known_has_no_columns() -> None:
    layers = kernel("k", 9.0, "m.py:1 jit(f)/A/mul"), kernel("l", 3.0, "m.py:2 jit(f)/B/add")
    ours = Side("astitch", kernels=layers)
    both = Report("t", "d", "static", MACHINE, Side("xla", kernels=layers), ours)
    alone = Report("t", "d", "static", MACHINE, Side("xla", missing="not installed"), ours)
    for report, shown in (both, True), (alone, False):
        page, text = report.to_html(), report.to_text()
        assert ("<th>XLA launches</th>" in page) == shown
        assert "<th>astitch launches</th>" in page
        assert ("XLA / astitch  one kernel" in text) == shown and "one kernel" in text


def test_a_column_of_kernels_in_which_nothing_is_known_is_left_out() -> None:
    plain = Side("xla", kernels=(kernel("k", 9.0),))
    full = Side("astitch", kernels=(Kernel("k", MEMORY, 1.0, us=9.0, bound_us=3.0, registers=32),))
    for ours, shown in (Side("astitch"), False), (full, True):
        report = Report("t", "d", "static", MACHINE, plain, ours)
        assert (">registers</button>" in report.to_html()) == shown
        assert (" reg" in report.to_text()) == shown
        assert ">occupancy</button>" not in report.to_html()
