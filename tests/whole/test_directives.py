"""Directives: the owner of a program decides in the compiler's place."""

from __future__ import annotations

import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch import directives
from astitch.directives import DirectiveWarning, parse
from astitch.errors import InvalidOption
from astitch.show.compilation import Compilation

pytestmark = pytest.mark.usefixtures("host_engine")

ROWS, COLUMNS = 32, 64


def normalise(x: Any, w: Any) -> Any:
    """A norm and a column sum, a product, a softmax: two kernels."""
    centred = x - x.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    return jax.nn.softmax(y @ w, -1), jnp.square(y).sum(0)


def compile_it(*stitch: str, fn: Any = normalise) -> Compilation:
    """The compilation, after its results were compared with JAX's."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    w = rng.standard_normal((COLUMNS, COLUMNS)).astype(np.float32) / 8
    stitched = astitch.jit(fn, stitch=stitch)
    for ours, theirs in zip(stitched(x, w), jax.jit(fn)(x, w), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
    return stitched.lower(x, w).compile().compilation


def kernels(compilation: Compilation) -> list[str]:
    return [kernel.name for kernel in compilation.program.kernels]


def find_op(compilation: Compilation, kernel: str, opcode: str) -> str:
    """The last op of a kind in a kernel."""
    (plan,) = (plan for plan in compilation.plans if plan.scope.name == kernel)
    graph = compilation.scopes.graph
    return [name for name in plan.scope.members if graph[name].op == opcode][-1]


def test_two_ops_apart() -> None:
    plain = compile_it()
    assert kernels(plain) == ["stitch_0", "stitch_1"]
    total, product = find_op(plain, "stitch_0", "reduce"), find_op(plain, "stitch_0", "multiply")
    cut = compile_it(f"apart %{total} %{product}")
    assert kernels(cut) == ["stitch_0_0", "stitch_0_1", "stitch_1"]
    assert cut.directives == (f"apart %{total} %{product}: followed",)
    homes = [plan.scope.name for plan in cut.plans if {total, product} & set(plan.scope.members)]
    assert homes == ["stitch_0_0", "stitch_0_1"]


def test_two_ops_together() -> None:
    plain = compile_it()
    total = find_op(plain, "stitch_0", "reduce")
    joined = compile_it(f"together %{total} %{plain.plans[1].scope.outputs[-1]}")
    (plan,) = (plan for plan in joined.plans if plan.scope.name == "stitch_1")
    assert total in plan.scope.members
    assert "%" + total not in str(joined.plans[0].scope)


def test_a_cycle_is_not_made() -> None:
    plain = compile_it()
    result = plain.plans[1].scope.outputs[-1]
    first = plain.scopes.scopes[0].outputs[0]  # what the product reads
    with pytest.warns(DirectiveWarning, match=r"would close a cycle through %dot\S* \(dot\)"):
        same = compile_it(f"together %{first} %{result}")
    assert kernels(same) == kernels(plain)


def test_so_many_ops_at_most() -> None:
    small = compile_it("at-most 6")
    assert max(len(plan.scope.members) for plan in small.plans) <= 6
    assert len(small.plans) > 2


def test_one_kernel_of_so_many_ops() -> None:
    softmax = compile_it().plans[1].scope.outputs[-1]
    cut = compile_it(f"at-most 4 %{softmax}")
    assert kernels(cut)[0] == "stitch_0"
    assert all(len(plan.scope.members) <= 4 for plan in cut.plans[1:])


@pytest.mark.parametrize("name", ["%{op}", "stitch_1"])
def test_a_stitch_op_left(name: str) -> None:
    op = compile_it().plans[1].scope.outputs[-1]
    left = compile_it(f"leave {name.format(op=op)}")
    assert kernels(left) == ["stitch_0"]
    assert "a directive leaves it to XLA" in left.explain()


def test_all_left() -> None:
    assert kernels(compile_it("leave all")) == []


def test_a_plan_by_number() -> None:
    plain = compile_it()
    op = plain.plans[1].scope.outputs[-1]
    other = compile_it(f"plan %{op} 1")
    assert other.plans[1].schedule != plain.plans[1].schedule
    assert other.plans[1].notes[-1].startswith("plan 1 of ")
    with pytest.warns(DirectiveWarning, match=r"plan %\S+ 99: not followed: it has \d+ plans"):
        assert compile_it(f"plan %{op} 99").plans[1].schedule == plain.plans[1].schedule


def test_a_pass_left_out() -> None:
    assert compile_it("without stitch_remotely").directives == (
        "without stitch_remotely: followed",
    )
    with pytest.warns(DirectiveWarning, match="no program without this pass"):
        compile_it("without emit")


def test_what_names_nothing_warns() -> None:
    with pytest.warns(DirectiveWarning, match=r"apart %a %b: not followed: nothing that it names"):
        compile_it("apart %a %b")


def test_a_file_holds_for_the_programs_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stitches"
    monkeypatch.setenv("ASTITCH_STITCHES", str(file))
    file.write_text("leave %nowhere  # of another program\n[other*]\nleave all\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(kernels(compile_it())) == 2
    file.write_text("[jit_norm*]\nleave all\n")
    assert kernels(compile_it()) == []


@pytest.mark.parametrize("line", ["apart %a", "leave", "plan %a", "fuse %a %b", "at-most 0"])
def test_what_is_no_directive_is_refused(line: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        astitch.jit(normalise, stitch=["# why", line])
    first, *forms = str(caught.value).splitlines()
    assert first == f"astitch.jit: stitch=, line 2: {line!r} is no directive"
    assert len(forms) == len(directives.VERBS)


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_STITCHES", "/nowhere/stitches")
    with pytest.raises(InvalidOption, match="ASTITCH_STITCHES='/nowhere/stitches' cannot be read"):
        directives.read_directives()


def test_one_form_of_the_text() -> None:
    given = "  leave   %a # why\n\n[f*]\nplan b 3\n[*]\nat-most 4 %c\nleave all"
    assert parse(given, "").text == "leave %a\n[f*]\nplan %b 3\n[*]\nat-most 4 %c\nleave all"
    assert parse(parse(given, "").text, "").text == parse(given, "").text


def deep(x: Any, w: Any) -> Any:
    """Blocks with gradients: stages, recomputation, refusals."""

    def loss(x: Any) -> Any:
        for _ in range(2):
            y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
            x = x + jax.nn.gelu(y @ w) @ w.T
        return jnp.square(x).sum()

    return jax.value_and_grad(loss)(x)


def dense(x: Any, w: Any) -> Any:
    """Products that could take a kernel in: GELU by tanh, ReLU beside a residual."""
    y = jax.nn.gelu(x @ w)
    return jax.nn.relu(y @ w + y), jax.nn.softmax(x, -1)


def turns(x: Any, w: Any) -> Any:
    """A loop that is XLA's, between two kernels."""
    state, summed = jax.lax.scan(lambda c, y: (jnp.tanh(c @ w + y), c.sum()), x[0] * 0.5, x)
    return jax.nn.softmax(state, -1), jnp.cumsum(summed)


MOST_FOLLOWED = 2
"""Lines of one verb that are tried: each is a compilation."""

REVERSED = re.compile(r"to reverse it: (.*)|to take another plan: (.*)")


@pytest.mark.parametrize(
    "fn, verbs",
    [
        (deep, {"leave", "plan", "together"}),
        (dense, {"leave", "plan", "keep"}),
        (turns, {"leave", "plan"}),
    ],
)
def test_every_line_that_the_explanation_prints_is_followed(fn: Any, verbs: set[str]) -> None:
    plain = compile_it(fn=fn)
    lines = [one or other for one, other in REVERSED.findall(plain.explain())]
    by_verb: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        by_verb.setdefault(line.split()[0], []).append(line)
    assert by_verb.keys() >= verbs
    before = [plan.kernel for plan in plain.plans], plain.program.epilogues
    for line in itertools.chain(*(found[:MOST_FOLLOWED] for found in by_verb.values())):
        reversed_ = compile_it(line, fn=fn)
        assert reversed_.directives == (f"{line}: followed",), line
        after = [plan.kernel for plan in reversed_.plans], reversed_.program.epilogues
        assert after != before, line
