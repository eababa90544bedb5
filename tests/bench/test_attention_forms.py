"""The benchmark of attention: its formulas are JAX's own attention where that has them, and each is one op."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from astitch.attention import find
from astitch.attention.choose import Projection
from benchmarks import attention
from benchmarks.attention import Form, attend, call_library, list_forms, make_arguments
from tests.attention.test_fuse import fuse, list_attention

FORMS = {
    (form.dtype == "f32", form.mask, form.groups != form.heads, form.gradient): replace(
        form, length=24, features=16, heads=4, groups=2 if form.groups != form.heads else 4
    )
    for form in list_forms()
}
"""One of each kind, small."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WORDS", 48)
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "LEAST_OF_LIBRARY", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0, 0.5))


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_formulas_are_attention(form: Form) -> None:
    arrays = make_arguments(form)
    _, fused = fuse(attend(form), arrays)
    assert [op for op, _ in list_attention(fused)][: 1 + form.gradient] == [
        "attention",
        "attention-gradient",
    ][: 1 + form.gradient]
    if form.parts & {"dropout", "cap", "sink"}:
        return  # JAX's own has none of them
    wide = [a if a.dtype.kind in "bi" else a.astype(np.float32) for a in arrays]
    found = jax.tree.leaves(jax.jit(attend(form))(*wide))
    expected = jax.tree.leaves(jax.jit(call_library(form, "xla"))(*wide))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_torch_computes_the_same(form: Form) -> None:
    """The formula that torch.compile is given, and torch's own call where it has the form."""
    pytest.importorskip("torch")
    from benchmarks import attention_torch

    if "dropout" in form.parts:
        return  # torch draws other bits
    form = replace(form, dtype="f32")
    arrays = make_arguments(form)
    expected = jax.tree.leaves(jax.jit(attend(form))(*arrays))
    for compiled in (False, True):
        try:
            call = attention_torch.make_call(form, arrays, compiled=compiled)
        except NotImplementedError:
            assert not compiled and form.parts & {"cap", "sink", "learned", "whole"}
            continue
        found = call() if form.gradient else [call()]
        for one, other in zip(found, expected, strict=True):
            ours = one if one.dim() < 4 or one.shape == other.shape else one.transpose(1, 2)
            np.testing.assert_allclose(ours.detach().cpu(), other, rtol=2e-2, atol=2e-2)
