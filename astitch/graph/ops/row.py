"""The row of an op: everything that astitch knows of it.

The families (elementwise, movement, reductions ...) fill in rows; `graph/ops/__init__.py` joins them into OPS.
A consumer asks a row for a property and never compares the opcode.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astitch.graph.ir import DType, Graph, Node, Type
from astitch.graph.ops.access import Access, Index, read_at_same_index
from astitch.graph.ops.hlo_fields import NO_ATTRIBUTES, Attributes
from astitch.graph.ops.rules import keep_declared_type

Meaning = Callable[..., Any]
"""(node, one array for each operand) -> the result, or a tuple of the results."""

Rule = Callable[[Node, Sequence[Type]], Type]
"""(node, operand types) -> the node's type.  Raises BrokenRule."""

Shape = tuple[int, ...]
Pairs = Callable[[Node, Shape, Shape, int], list[tuple[int, int]]]
"""(node, shape of the operand, shape of the result, number of the operand) -> (operand dimension, result dimension) of
each loop that operand and result share."""

IndexMap = Callable[[Graph, Node, Index], Access]
"""(graph, node, index of an element) -> what the element is computed from."""

Neutral = Callable[[DType], np.ndarray | None]
"""element type -> the e for which op(x, e) is x to the bit, for every x; None if there is none."""


Needed = Callable[[int, Sequence[int], int, int], int]
"""(elements of the result, sizes of the operands, size of the result, number of an operand) -> how many elements of
that operand they depend on, at most."""


class Kind(enum.Enum):
    """What the stitcher may do with an op."""

    SOURCE = "source"  # parameter, constant, iota: no operands
    ELEMENTWISE = "elementwise"  # result[i] = f(operands[i])
    BROADCAST = "broadcast"  # one-to-many
    INDEX = "index"  # result[i] = operand[g(i)]: reshape, transpose, slice, pad, concatenate ...
    REDUCE = "reduce"  # many-to-one
    COMPUTE = "compute"  # dot, convolution: a library call
    PROJECTION = "projection"  # get-tuple-element
    CONTROL = "control"  # while, conditional, call
    BARRIER = "barrier"  # optimization-barrier: its operands, which nothing is merged across
    OTHER = "other"  # sort, scatter, fft ...: a step of its own for now


class Cost(enum.Enum):
    """A heavy op is worth a buffer before a broadcast (paper section 2)."""

    LIGHT = "light"
    HEAVY = "heavy"


def share_equal_shapes(
    node: Node, source: Shape, target: Shape, number: int
) -> list[tuple[int, int]]:
    """Each dimension where operand and result have one shape."""
    return [(d, d) for d in range(len(source))] if source == target else []


def share_nothing(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    """No dimension of the operand is a loop of the result."""
    return []


def need_one_each(needed: int, sizes: Sequence[int], result: int, number: int) -> int:
    """One element for each element of the result."""
    return needed


def need_proportion(needed: int, sizes: Sequence[int], result: int, number: int) -> int:
    """Needed is as large a part of the operand as of the result."""
    return -(-sizes[number] * needed // result)


@dataclass(frozen=True, slots=True)
class Op:
    """One op.

    kind: what the stitcher does with it.  cost, flops: of one element, flops being rough.
    cuda: how the scalar is rendered, `{0}` `{1}` `{2}` being the operands in their compute type (f32 for f16 and bf16);
    the functions are in cuda/hlo_math.cuh.  An empty text means that emit_cuda renders it by types or attributes.
    narrow_cuda: the same where the result is rounded to f16 or bf16, `{T}` being that storage type.
    meaning: the op in NumPy; none where reference.py interprets a region.
    rule: the type of the result (graph/check.py).  regions: how many the op has, None for any number.
    attributes: the class of its attributes and where HLO has them (read by hlo_import.py, written by hlo/export.py).
    pairs: the loops that operand and result share (graph/dimensions.py).
    index_map: what an element is computed from (graph/propagation.py).
    needed: how many elements of an operand some elements of the result depend on (cost/speed_of_light.py).
    neutral, combiner: of a binary op that has a neutral element, or that reduces by NumPy's ufunc.
    """

    kind: Kind
    cost: Cost = Cost.LIGHT
    cuda: str = ""
    flops: int = 1
    narrow_cuda: str = ""
    meaning: Meaning | None = None
    rule: Rule = keep_declared_type
    regions: int | None = 0
    attributes: Attributes = NO_ATTRIBUTES
    pairs: Pairs = share_nothing
    index_map: IndexMap = read_at_same_index
    neutral: Neutral | None = None
    combiner: np.ufunc | None = None
    needed: Needed = need_one_each
    addend_sign: int = 0  # of an addition and a subtraction: the sign that the second operand has
    is_commutative: bool = False
    negates: bool = False  # of truths: it holds where its operand does not
    is_pure: bool = True  # equal nodes have equal results, and a dead one may go
    is_exact: bool = False  # of narrow floats: computed in f32, the result is such a float already
    is_free: bool = False  # element-wise, and no instruction: the bits stay as they are
    is_conversion: bool = False  # between element types
    is_bitcast: bool = False  # alone it moves nothing: the same buffer under another type
    takes_complex: bool = False  # element-wise: `cuda` knows complex numbers too
    on_tiles: bool = False  # element-wise, and XLA's products go on with it
    is_approximate: bool = False  # the special function unit has it, to some 22 bits
    is_linear: bool = False  # element-wise, and of floats a sum or a multiple of what it reads
    carries_narrow: bool = False  # a value on its way to a conversion may go through it
    is_pointwise: bool = False  # no kernel has it, but it works on arrays position by position
    is_view: bool = False  # the result is its operand's row-major buffer under another shape
    keeps_order: bool = False  # the result has its operand's elements in their row-major order
    permutes: bool = False  # the operand's elements under another order or shape of dimensions
    lays_out: bool = False  # so, or several operands one behind the other
    chooses: bool = False  # an element comes from one operand or another, by its index
    writes_into: bool = False  # XLA computes it in the memory of its first operand
    is_loop: bool = False  # runs a region as often as another one says

    @property
    def is_reduce(self) -> bool:
        return self.kind is Kind.REDUCE

    @property
    def is_broadcast(self) -> bool:
        return self.kind is Kind.BROADCAST

    @property
    def reindexes(self) -> bool:
        """Reads its operand at another place of the row-major buffer than its own."""
        return self.kind is Kind.INDEX and not self.is_view
