"""Memory over one call: what is in use where, of XLA's schedules and of our own programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import astitch
from astitch.profiling.figures import draw_memory
from astitch.profiling.memory import trace_module
from astitch.profiling.report import Memory, Report
from astitch.profiling.trace_file import render_trace

ROW = 4 * 1024


def chain(x: jax.Array) -> jax.Array:
    """Sorts, which XLA makes one by one, and of which no two need to be kept."""
    for _ in range(4):
        x = jnp.sort(x)[::-1]
    return x


def wide(x: jax.Array) -> jax.Array:
    """Four sorts that are all read in the end."""
    return jnp.stack([jnp.sort(x + n) for n in range(4)]).sum(0)


def turns(x: jax.Array) -> jax.Array:
    """A loop whose body needs room of its own."""
    return jax.lax.fori_loop(0, 9, lambda _, c: jnp.sort(c)[::-1] + jnp.sort(-c), x)


@pytest.mark.parametrize("fn", [chain, wide, turns])
def test_what_is_in_use_is_near_what_xla_plans(fn: Callable[..., Any]) -> None:
    compiled = jax.jit(fn).lower(jax.ShapeDtypeStruct((1024,), jnp.float32)).compile()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    memory, stats = trace_module(bytes(module)), compiled.memory_analysis()
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes
    assert memory.peak is not None and memory.peak_at
    assert min(memory.points) >= kept == 2 * ROW
    assert memory.peak <= kept + stats.temp_size_in_bytes + ROW
    if fn is wide:
        assert memory.peak >= 5 * ROW


def test_a_donated_argument_is_counted_once() -> None:
    traced = jax.jit(lambda x: x + 1, donate_argnums=0)
    compiled = traced.lower(jax.ShapeDtypeStruct((1024,), jnp.float32)).compile()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    assert trace_module(bytes(module)).peak == ROW


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    with jax.named_scope("norm"):
        y = x - x.mean(-1, keepdims=True)
    with jax.named_scope("first"):
        y = jax.nn.softmax(y @ w, -1)
    with jax.named_scope("second"):
        return jax.nn.softmax((y + y.sum(0)) @ w, -1) + x


@pytest.fixture(scope="module")
def report() -> Report:
    shapes = (512, 256), (256, 256)
    return astitch.profile(
        layer, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), gpu="h100", ablation=False
    )


def test_a_program_of_ours_has_a_curve(report: Report) -> None:
    memory = report.astitch.memory
    assert memory.peak and memory.steps == len(memory.points)
    least = sum(4 * n for n in (512 * 256, 256 * 256, 512 * 256))
    assert least <= min(memory.points) and memory.peak > least
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


def test_curves_and_plans_are_drawn(report: Report) -> None:
    both = replace(
        report,
        xla=replace(report.xla, memory=Memory((10, 3000, 2000), "fusion.3", 3), planned_bytes=3500),
        astitch=replace(report.astitch, memory=Memory((10, 3000), "stitch_1", 2)),
    )
    picture = draw_memory(both)
    assert picture.count('class="curve ') == 2 and picture.count('class="planned ') == 2
    assert "XLA: at most 3.00 kB, at fusion.3" in picture
    assert "Memory over one call" in both.to_html()
    nothing = replace(
        report,
        xla=replace(report.xla, memory=Memory()),
        astitch=replace(report.astitch, memory=Memory()),
    )
    assert draw_memory(nothing) == "" and "Memory over one call" not in nothing.to_html()


def test_a_layer_of_several_kernels_tells_what_one_would_take(report: Report) -> None:
    from astitch.profiling.layers import tabulate_layers

    rows = {row.name: row for row in tabulate_layers(report)}
    assert rows["second"].whole_us is not None and rows["second"].astitch_us is not None
    for row in rows.values():
        assert row.whole_us is None or row.whole_us <= (row.astitch_us or 0.0) * 1.001
    split = [r for r in rows.values() if r.whole_us and r.whole_us < (r.astitch_us or 0.0) * 0.99]
    assert split, rows  # some layer has parts in two kernels
    assert "<th>one kernel</th>" in report.to_html()


def test_a_refusal_leads_to_its_line(report: Report) -> None:
    place = next(s.partition(" ")[0] for r in report.refusals for s in r.sources if ".py:" in s)
    lines = report.excerpts[place]
    number = place.rpartition(":")[2]
    (here,) = (line for line in lines if line.split()[0] == number)
    source = Path(__file__).read_text("utf-8").splitlines()
    assert here.partition(" ")[2].strip() == source[int(number) - 1].strip()
    page = report.to_html()
    anchor = next(part for part in page.split('"') if part.startswith("#at-"))
    assert f'id="{anchor[1:]}"' in page
    named = replace(report, excerpts={place: ("7 <b>no tag</b>",)})
    assert "<b>no tag</b>" not in named.to_html()


def test_the_trace_has_both_sides_and_every_launch(report: Report) -> None:
    trace = json.loads(render_trace(report))
    events = trace["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"XLA", "astitch"}
    launches = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in launches if e["pid"] == 2] == [
        event.name for event in report.astitch.timeline
    ]
    stitched = next(e for e in launches if e["name"].startswith("stitch_"))
    assert stitched["args"]["ops"] > 1 and stitched["dur"] > 0
    counted = [e for e in events if e["ph"] == "C" and e["pid"] == 2]
    assert [e["args"]["bytes"] for e in counted] == list(report.astitch.memory.points)
    assert all(e["ts"] <= max(x["ts"] + x["dur"] for x in launches) for e in counted)


def test_the_command_writes_a_trace(report: Report, tmp_path: Path) -> None:
    from astitch.profiling.command import main

    saved, out = tmp_path / "r.json", tmp_path / "trace.json"
    saved.write_text(json.dumps(report.to_dict()))
    assert main([str(saved), "--trace", str(out)]) == 0
    assert json.loads(out.read_text())["otherData"]["target"] == report.target


def test_tensorboard_s_file_is_what_jax_reads(report: Report, tmp_path: Path) -> None:
    from astitch.profiling.command import main

    saved = tmp_path / "r.json"
    saved.write_text(json.dumps(report.to_dict()))
    assert main([str(saved), "--tensorboard", str(tmp_path / "logs")]) == 0
    (file,) = (tmp_path / "logs" / "plugins" / "profile").rglob("*.xplane.pb")
    planes = list(jax.profiler.ProfileData.from_serialized_xspace(file.read_bytes()).planes)
    assert [plane.name for plane in planes] == ["/device:GPU:0 XLA", "/device:GPU:1 astitch"]
    events = [event for line in planes[1].lines for event in line.events]
    assert sorted(event.name for event in events) == sorted(e.name for e in report.astitch.timeline)
    by_name = {event.name: event for event in events}
    for event in report.astitch.timeline:
        assert by_name[event.name].duration_ns == pytest.approx(1e3 * event.us, abs=1.0)
    starts = {event.name: event.start_ns for event in events}
    first = min(starts.values())
    last = report.astitch.timeline[-1]
    assert starts[last.name] - first == pytest.approx(1e3 * last.start_us, abs=1.0)
    (tmp_path / "file").touch()
    assert main([str(saved), "--tensorboard", str(tmp_path / "file")]) == 2
