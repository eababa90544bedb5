"""A report -> its time by layer of the model: by the scopes that ops are named after.

Takes kernels with the places that their ops come from, hands on a row for each layer.  A kernel's time is divided
among its layers by the number of ops that each has in it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from astitch.profiling.report import KINDS, PRODUCT, Kernel, Report, Side

DEEPEST = 4
"""Scopes of a layer's name: `Encoder_0/Attention_1/LayerNorm_0`."""

ELSEWHERE = "(no name)"

_AROUND = "jit pjit jvp transpose vmap checkpoint remat rematted_computation custom_jvp custom_vjp"
_WRAPPED = re.compile(rf"^(?:{_AROUND.replace(' ', '|')})\((.*)\)$")
_NO_SCOPE = re.compile(
    r"checkpoint|rematted_computation|while|body|cond|scan|branch_\d+_fun|eval_jaxpr|(closed_)?call(\.\d+)?"
)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer.  us: of its kernels on each side, or of its shares in them; None where that side is not known.
    launches: of kernels in which it has ops.  whole_us: its products, and its part of its stitch ops were these one
    kernel, at the speed of light; None where that is not known."""

    name: str
    xla_us: float | None
    astitch_us: float | None
    xla_launches: float
    astitch_launches: float
    whole_us: float | None = None


def tabulate_layers(report: Report) -> tuple[LayerRow, ...]:
    """The layers, by XLA's time or else astitch's, the longest first."""
    sides = [_sum_side(side, measured=report.measured) for side in report.sides]
    products, _ = _sum_side(report.astitch, measured=report.measured, kinds=(PRODUCT,))
    names = dict.fromkeys(name for times, _ in sides for name in times)
    rows = []
    for name in names:
        us = [times.get(name, 0.0) if times else None for times, _ in sides]
        launches = [counts[name] for _, counts in sides]
        whole = report.whole_us.get(name)
        if whole is not None:
            whole += products.get(name, 0.0)
        rows.append(LayerRow(name, us[0], us[1], launches[0], launches[1], whole))
    return tuple(sorted(rows, key=lambda row: -(row.xla_us or row.astitch_us or 0.0)))


def _sum_side(
    side: Side, *, measured: bool, kinds: Collection[str] = KINDS
) -> tuple[dict[str, float], dict[str, float]]:
    times: dict[str, float] = {}
    launches: dict[str, float] = defaultdict(float)  # of traced calls a mean
    for kernel in side.kernels:
        if kernel.kind not in kinds:
            continue
        us = kernel.us if measured else kernel.bound_us
        layers = layers_of(kernel)
        total = sum(layers.values())
        for name, count in layers.items():
            launches[name] += kernel.launches
            times[name] = times.get(name, 0.0) + (us or 0.0) * count / total
    return times, launches


def layers_of(kernel: Kernel) -> Counter[str]:
    """How many of a kernel's ops each layer has."""
    return count_layers(kernel.source)


def count_layers(source: Iterable[str]) -> Counter[str]:
    """How many of the ops from these places each layer has; those without a name count only where none has one."""
    found = Counter(map(name_layer, _split(source)))
    named = Counter({name: count for name, count in found.items() if name != ELSEWHERE})
    return named or Counter({ELSEWHERE: 1})


def _split(source: Iterable[str]) -> Iterable[str]:
    """Places of ops; one that came of several has their names behind each other."""
    for place in source:
        yield from place.split(";")


def name_layer(place: str) -> str:
    """The scopes of an op's name, `train.py:4 jit(step)/jvp(Encoder_0)/Dense_0/dot_general` -> `Encoder_0/Dense_0`.

    A name without scopes gives the line of the source.
    """
    line, _, path = place.rpartition(" ")
    *scopes, _ = path.split("/") if "/" in path else [""]
    unwrapped = filter(None, map(_unwrap, scopes))
    names = [name for name in unwrapped if not _NO_SCOPE.fullmatch(name)]
    if names:
        return "/".join(names[:DEEPEST])
    return line.rpartition("/")[2] or ELSEWHERE


def _unwrap(scope: str) -> str:
    """A scope without JAX's transformations around it; the name of a jitted function is none, nor is the equation
    after which JAX names the ops of an einsum."""
    while found := _WRAPPED.match(scope):
        if scope.startswith(("jit(", "pjit(")):
            return ""
        scope = found[1]
    return "" if "," in scope or "->" in scope else scope
