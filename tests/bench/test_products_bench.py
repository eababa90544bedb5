"""The benchmark of products: its formulas mean the same on all sides, the hook keeps them, its arithmetic is right."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astitch.profiling.kernel_trace import Launch
from benchmarks import product_forms, products
from benchmarks.product_forms import (
    EXACT_ROWS,
    Apart,
    Form,
    Jax,
    compute,
    cut_rows,
    distance_from,
    evaluate_exactly,
    list_forms,
    list_given,
    make_arrays,
    order,
)
from benchmarks.product_tables import (
    Row,
    find_misses,
    find_over_bf16,
    format_row,
    load_rows,
    summarize,
)
from tests.ahead_of_time import needs_hook

WIDTHS = {
    "network": (24, 32, 16),
    "lora": (256, 4, 64),
    "squeeze": (3, 5, 32, 4),
    "convolutions": (3, 5, 16, 8, 24),
}

FORMS = {
    form.group: replace(
        form, rows=6, widths=WIDTHS.get(form.kind, (256, 64)), experts=min(form.experts, 3)
    )
    for form in list_forms()
}
"""One of each group, small."""

TOLERANCES = {"f32": 1e-5, "f16": 5e-3, "bf16": 3e-2}


def distance(form: Form, arrays: list[np.ndarray], result: Any) -> float:
    found = cut_rows(np.asarray(result), form.along)
    return distance_from(evaluate_exactly(form, arrays), found)


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.group)
def test_formulas_are_their_exact_ones(form: Form) -> None:
    arrays = make_arrays(form)
    result = products.jit_form(form)(*arrays)
    assert distance(form, arrays, result) <= TOLERANCES[form.factor]
    if form.is_chain:
        assert distance(form, arrays, compute(Apart(), form, arrays)) <= TOLERANCES[form.factor]


def test_a_wrong_result_is_seen() -> None:
    form = FORMS["norm+silu, s8 column"]
    arrays = make_arrays(form)
    result = np.asarray(products.jit_form(form)(*arrays)).copy()
    result[0] = result[1]
    assert distance(form, arrays, result) > 0.1


def test_scales_differ_along_what_they_are_for() -> None:
    """Else a formula that scales by the wrong ones would pass."""
    for form in FORMS.values():
        if form.scaling:
            scales = [
                a
                for g, a in zip(list_given(form), make_arrays(form), strict=True)
                if g.draw == "scale"
            ]
            assert all(len(np.unique(s)) > 2 or s.size <= 2 for s in scales), form.name


def test_rows_are_independent() -> None:
    """Only then is a part of them exact."""
    form = replace(FORMS["rope, f32"], rows=EXACT_ROWS + 3)
    arrays = make_arrays(form)
    less = [
        cut_rows(a, g.rows) if g.rows is not None else a
        for g, a in zip(list_given(form), arrays, strict=True)
    ]
    whole, part = compute(Jax(), form, arrays), compute(Jax(), form, less)
    np.testing.assert_allclose(whole[:EXACT_ROWS], part, rtol=1e-4, atol=1e-5)


HOOKED = (
    "plain, bf16",
    "plain, f8",
    "plain, s8 row",
    "plain, s8 group",
    "norm+silu, s8 column",
    "gate, f8",
    "rope, f32",
    "casts, f16",
    "experts+gate, bf16",
    "network, f32",
    "lora, s8 column",
    "squeeze, f32",
)


@needs_hook
@pytest.mark.parametrize("group", HOOKED)
def test_the_hook_keeps_what_they_compute(group: str) -> None:
    """With so many weights that products of few rows are kernels of their own."""
    from tests.hook_evaluation import stitch_through_hook

    form = FORMS[group]
    if form.kind not in WIDTHS:
        form = replace(form, widths=(256, 4096))
    arrays = make_arrays(form)
    hooked = stitch_through_hook(lambda *given: compute(Jax(), form, given), *arrays)
    (result,) = hooked.run(arrays)
    expected = np.asarray(products.jit_form(form)(*arrays))
    assert distance(form, arrays, result.reshape(expected.shape)) <= TOLERANCES[form.factor]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch here")
@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.group)
def test_torch_computes_the_same(form: Form) -> None:
    from benchmarks import product_torch

    arrays = make_arrays(form)
    tensors = product_torch.move(form, arrays, "cpu")
    compiled = product_torch.make_compiled(form, backend="eager")
    for call in (product_torch.make_eager(form), compiled):
        result = product_torch.to_numpy(call(tensors))
        assert distance(form, arrays, result) <= TOLERANCES[form.factor]
    zeros = product_torch.make_zeros(form, "cpu")
    assert [(z.shape, z.dtype) for z in zeros] == [(t.shape, t.dtype) for t in tensors]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch here")
def test_torch_unpacks_what_is_packed() -> None:
    import torch

    from benchmarks import product_torch

    numbers = np.arange(-7, 8, dtype=np.int8).repeat(8).reshape(2, 10, 6)
    unpacked = product_torch.unpack(torch.from_numpy(product_torch.pack(numbers)))
    np.testing.assert_array_equal(unpacked.numpy(), numbers)


# ---- which forms, in which order -------------------------------------------------------------------------------------


def test_a_cut_off_run_has_a_cross_section() -> None:
    forms = list_forms()
    ordered = order(forms)
    assert sorted(f.name for f in ordered) == sorted(f.name for f in forms)
    groups = {f.group for f in forms}
    assert {f.group for f in ordered[: len(groups)]} == groups
    some = ordered[: 3 * len(groups)]
    assert set(product_forms.ROWS) <= {f.rows for f in some}
    assert len({f.widths for f in some}) > 20


def test_bytes_count_half_for_four_bits() -> None:
    x, weights, scales = list_given(Form("plain", "s4 group", 8, (256, 64)))
    assert (x.bytes, weights.bytes, scales.bytes) == (8 * 256 * 2, 256 * 64 / 2, 2 * 64 * 2)


def test_what_is_read_is_not_in_the_l2() -> None:
    for form in list_forms():
        sizes = [given.bytes for given in list_given(form)]
        copies = products.count_copies(form)
        assert copies * sum(sizes) >= 150e6 or copies == products.MOST_COPIES
        sets = products.copy_sets(form, lambda number: object(), 3)
        largest = sizes.index(max(sizes))
        assert len({id(arguments[largest]) for arguments in sets}) == 3


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_times_are_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has 8 calls of 2 kernels; what was recorded goes to the row and the side that ran."""
    ran: list[str] = []

    def make(name: str) -> products.Side:
        return products.Side(
            name, lambda _: ran.append(name), [[1], [2]], lambda _: None, np.asarray
        )

    def record(batches: Sequence[Callable[[], object]]) -> list[list[Launch]]:
        us = {"xla": 3.0, "astitch": 1.5}
        found = []
        for batch in batches:
            before = len(ran)
            batch()
            found.append([Launch(f"of {n}", us[n]) for n in ran[before:] for _ in range(2)])
        return found

    monkeypatch.setattr(products, "record_batches", record)
    form = FORMS["plain, f32"]
    tasks = [
        products.Task(Row(form), sides=[make("xla"), make("astitch")]),
        products.Task(Row(form)),
    ]
    products.measure(tasks)
    assert tasks[0].row.us == {"xla": 6.0, "astitch": 3.0} and tasks[1].row.us == {}
    assert tasks[0].row.launches == {"xla": 2.0, "astitch": 2.0}
    assert tasks[0].row.over_best == 2.0
    assert ran[:8] == ["xla"] * 8 and ran[8:16] == ["astitch"] * 8, "in turns"


def test_a_check_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    only = ["--only", "f32, 2 x 46x46", "f32, 1 x 1024x1024x"]
    products.main(["--check", *only, "--json", str(file), "--sides", "xla", "astitch", "apart"])
    out = capsys.readouterr().out
    assert "2 of 2 forms" in out and "misses: 0 of 0" in out
    rows = json.loads(file.read_text())
    assert [sorted(row["errors"]) for row in rows] == [
        ["astitch", "xla"],
        ["apart", "astitch", "xla"],
    ]
    assert all(error < 1e-5 for row in rows for error in row["errors"].values())
    assert not any(row["notes"] for row in rows)
    products.main(["--report", str(file), str(file)])
    assert capsys.readouterr().out.splitlines()[-1] == out.splitlines()[-1] == "misses: 0 of 0"
    assert load_rows(file)[0].form in list_forms()


# ---- the summary -----------------------------------------------------------------------------------------------------


def make_rows() -> list[Row]:
    bf16 = Form("plain", "bf16", 8, (2048, 2048))
    return [
        Row(bf16, {"xla": 6.0, "astitch": 5.0, "torch": 5.5}, copy_gbs=4000.0),
        Row(replace(bf16, rows=64), {"xla": 7.0, "astitch": 10.0, "torch": 9.0}),
        Row(replace(bf16, dtype="s8 column"), {"xla": 8.0, "astitch": 4.0, "bf16": 6.2}),
        Row(replace(bf16, dtype="s4 column"), {"xla": 8.0, "astitch": 2.0, "bf16": 6.0}),
        Row(replace(bf16, dtype="f8"), {"xla": 8.0}, notes={"astitch": "ValueError: no"}),
    ]


def test_ratios_of_rows() -> None:
    rows = make_rows()
    assert [row.over_best for row in rows] == [1.1, 0.7, 2.0, 4.0, None]
    assert [row.best for row in rows] == ["torch", "xla", "xla", "xla", "xla"]
    assert find_over_bf16(rows[2], rows) == 5.0 / 4.0  # astitch's own, which is the fastest
    assert find_over_bf16(rows[2], rows[2:3]) == 6.2 / 4.0
    assert find_over_bf16(rows[0], rows) is None
    share = (8 * 2048 + 2048 * 2048) * 2 / 5.0 / 1e3 / 4000.0
    assert rows[0].share == pytest.approx(share)


def test_misses() -> None:
    rows = make_rows()
    assert [list(find_misses(row, rows)) for row in rows] == [
        [],
        ["0.70 of xla: 10.0 us for 7.0"],
        ["1.25 over bf16, not 1.6"],
        [],  # 2.5, which is enough
        ["failed: ValueError: no"],
    ]


def test_the_summary() -> None:
    lines = [" ".join(line.split()) for line in summarize(make_rows())]
    assert "plain, bf16 2 0.70 0.88 -" in lines
    assert "plain, s8 column 1 2.00 2.00 1.25" in lines
    assert "plain, f8 0 - - -" in lines
    assert "all 4 0.70 1.58 1.25" in lines
    assert "misses: 3 of 4" in " ".join(lines)


def test_a_row_of_the_table() -> None:
    cells = format_row(make_rows()[2]).split()
    assert cells[:5] == ["plain:", "s8", "column,", "8", "x"]
    assert "2.00" in cells and "1.55" in cells
    assert format_row(make_rows()[4]).endswith("\n    astitch: ValueError: no")
