"""Compilation -> the kernels that XLA's products do as well, each with the reason."""

from __future__ import annotations

from collections.abc import Collection

from astitch.library.epilogues import find_epilogues, fits_into_xla_product
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


def find_finished(compilation: Compilation, in_place: Collection[str]) -> dict[str, str]:
    """The kernels that only finish a product, with the reason: XLA does so as it multiplies.

    in_place: kernels whose results take over memory, where XLA would copy.
    """
    scopes = {plan.kernel.name: plan.scope for plan in compilation.plans}
    found, _ = find_epilogues(compilation.scopes.graph, scopes, compilation.program.steps)
    return {
        epilogue.kernel: f"it only finishes a product: {epilogue}"
        for epilogue in found
        if fits_into_xla_product(epilogue) and epilogue.kernel not in in_place
    }
