"""The words of shape rules: what a rule raises, and the questions that many rules ask of a node."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeVar

from astitch.errors import IllegalProduct
from astitch.graph.ir import ArrayType, DType, Node, TupleType, Type, WindowDimension

A = TypeVar("A")


class Part(enum.Enum):
    """The part of a node that breaks its op's rule."""

    OPERANDS = "operands"
    ATTRIBUTES = "attributes"
    REGIONS = "regions"
    TYPE = "type"


class BrokenRule(IllegalProduct):
    """A node that breaks its op's rule: what is wrong, and in which part of the node."""

    def __init__(self, sentence: str, part: Part = Part.OPERANDS) -> None:
        super().__init__(sentence)
        self.part = part


def require(condition: bool, sentence: str, part: Part = Part.ATTRIBUTES) -> None:
    """Where the sentence would show types, which takes long, rules test the condition themselves."""
    if not condition:
        raise BrokenRule(sentence, part)


def require_operands(condition: bool, sentence: str) -> None:
    require(condition, sentence, Part.OPERANDS)


def attrs_of(node: Node, kind: type[A]) -> A:
    if not isinstance(node.attrs, kind):
        raise BrokenRule(
            f"{node.op} needs {kind.__name__}, not {type(node.attrs).__name__}", Part.ATTRIBUTES
        )
    return node.attrs


def elements_of(type: Type) -> tuple[ArrayType, ...]:
    return type.elements if isinstance(type, TupleType) else (type,)


def result_of(types: Sequence[ArrayType]) -> Type:
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def arrays_of(types: Sequence[Type], count: int | None = None) -> list[ArrayType]:
    arrays = []
    for i, type in enumerate(types):
        if isinstance(type, TupleType):
            raise BrokenRule(f"operand {i} is a tuple, {type}")
        arrays.append(type)
    if count is not None and len(arrays) != count:
        raise BrokenRule(f"has {len(arrays)} operands, the op takes {count}")
    return arrays


def array_of_result(node: Node) -> ArrayType:
    if isinstance(node.type, TupleType):
        raise BrokenRule(f"{node.op} has one result, not {node.type}")
    return node.type


def check_distinct(what: str, dimensions: Sequence[int], rank: int) -> None:
    require(
        len(set(dimensions)) == len(dimensions) and all(0 <= d < rank for d in dimensions),
        f"{what} {tuple(dimensions)} are not distinct dimensions of rank {rank}",
    )


def check_region(
    node: Node, at: int, parameters: Sequence[ArrayType], results: Sequence[ArrayType]
) -> None:
    """Region `at` takes `parameters` and returns `results`."""
    region = node.regions[at]
    for what, names, expected in (
        ("takes", region.parameters, parameters),
        ("returns", region.outputs, results),
    ):
        for name in names:
            if name not in region.nodes:
                raise BrokenRule(
                    f"region {region.name} {what} %{name}, a node it lacks", Part.REGIONS
                )
        found = [region[name].type for name in names]
        if found != list(expected):
            raise BrokenRule(
                f"region {region.name} {what} ({', '.join(map(str, found))}), "
                f"not ({', '.join(map(str, expected))})",
                Part.REGIONS,
            )


def without(shape: Sequence[int], dropped: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in dropped)


def scalars_of(arrays: Sequence[ArrayType]) -> list[ArrayType]:
    return [ArrayType(a.dtype, ()) for a in arrays]


def count_windows(n: int, w: WindowDimension) -> int:
    """How many positions the window has along a dimension of n elements."""
    require(
        w.size >= 1 and w.stride >= 1 and w.window_dilation >= 1 and w.base_dilation >= 1,
        f"impossible window {w}",
    )
    base = ((n - 1) * w.base_dilation + 1 if n else 0) + w.padding_low + w.padding_high
    window = (w.size - 1) * w.window_dilation + 1
    return (base - window) // w.stride + 1 if base >= window else 0


PART_TYPES = {DType.C64: DType.F32, DType.C128: DType.F64}


WHOLE_TYPES = {DType.F32: DType.C64, DType.F64: DType.C128}


def keep_declared_type(node: Node, operands: Sequence[Type]) -> Type:
    """The rule of an op that leaves everything open."""
    return node.type
