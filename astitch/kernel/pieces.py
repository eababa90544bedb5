"""Kernel -> Kernel: a parameter whose elements lie in pieces of a larger array, and not side by side."""

from __future__ import annotations

from dataclasses import replace

from astitch.errors import IllegalProduct
from astitch.graph import index as ix
from astitch.graph.index import Linear
from astitch.kernel import kernel_ir as k
from astitch.kernel.statement import Statement
from astitch.kernel.visit_statements import rewrite_statements

ACCESSES = (k.Load, k.LoadVector, k.Store, k.StoreVector)
"""The statements that say at which element of an array they begin."""


def spread_parameter(kernel: k.Kernel, number: int, run: int, step: int) -> k.Kernel:
    """The kernel with another distance between the elements of a parameter.

    Each `run` elements lie side by side; the next ones begin `step` elements behind them.  Only ACCESSES may name the
    parameter.  Raises IllegalProduct where a vector would reach over the end of a run.
    """
    name = kernel.arguments[number].name
    if kernel.arguments[number].source in kernel.wholes:
        raise IllegalProduct(
            f"kernel {kernel.name}: {name} has pieces, which have names of their own"
        )

    def spread(position: Linear) -> Linear:
        return ix.add(position, ix.scale(ix.divide(position, run), step - run))

    def rewrite(statement: Statement) -> Statement:
        if not isinstance(statement, ACCESSES) or statement.array != name:
            return statement
        width = statement.width if isinstance(statement, k.LoadVector | k.StoreVector) else 1
        if run % width:
            raise IllegalProduct(
                f"kernel {kernel.name}: vectors of {width} in {name} reach over pieces of {run} elements"
            )
        return replace(statement, position=spread(statement.position))

    return replace(kernel, body=rewrite_statements(kernel.body, rewrite))
