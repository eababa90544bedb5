"""Compilation -> the kernels that XLA's products do as well, each with the reason."""

from __future__ import annotations

from astitch.show.compilation import Compilation
from astitch.xla.library_tuning import find_layouts


def find_moves(compilation: Compilation) -> dict[str, str]:
    """The kernels that only permute what products give or take, with the reason: XLA has products do so."""
    moved = find_layouts(compilation.scopes)
    return {
        plan.kernel.name: "it only permutes what products give or take"
        for plan in compilation.plans
        if moved.issuperset(plan.scope.members)
    }
