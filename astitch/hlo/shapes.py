"""Shapes of HLO values: read as types, and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from astitch.errors import DynamicShape, MalformedHlo, UnsupportedType
from astitch.graph.ir import ArrayType, DType, TupleType, Type
from astitch.hlo import schema
from astitch.hlo.schema import decode

MOST_DIMENSIONS = 64
"""The most dimensions of one array: NumPy has no more."""


MOST_ARRAY_BYTES = 1 << 48
"""The most bytes of one array: as many as a process can address.  Smaller ones that no memory holds are legal: a kernel
may need none of it for a broadcast or an iota.  OutOfMemory is raised where room for one is asked for."""


WRITE_AGAIN = "the dump is damaged, write it again"


TypeTree: TypeAlias = "ArrayType | tuple[TypeTree, ...]"
"""The type of an HLO value, with its tuples in tuples."""

_ELEMENT_NUMBERS = {name: number for number, name in schema.ELEMENT_TYPES.items()}


TUPLE = _ELEMENT_NUMBERS["tuple"]


def where_of(computation: Any, instruction: Any) -> str:
    return f"HLO computation {decode(computation.name)}, instruction %{decode(instruction.name)}"


def leaf_types(type_: TypeTree) -> list[ArrayType]:
    if isinstance(type_, tuple):
        return [leaf for element in type_ for leaf in leaf_types(element)]
    return [type_]


def result_type(type_: TypeTree) -> Type:
    """The type of a node; nested tuples are flattened into one."""
    leaves = leaf_types(type_)
    return leaves[0] if len(leaves) == 1 else TupleType(tuple(leaves))


def as_array(type_: TypeTree, where: str) -> ArrayType:
    if isinstance(type_, tuple):
        raise MalformedHlo(f"{where}: it has a tuple shape, an array was expected")
    return type_


def read_type(shape: Any, where: str) -> TypeTree:
    element = schema.ELEMENT_TYPES.get(shape.element_type, f"number {shape.element_type}")
    if element == "tuple":
        return tuple(read_type(s, where) for s in shape.tuple_shapes)
    try:
        dtype = DType(element)
    except ValueError:
        raise unsupported_type(element, where) from None
    if any(shape.is_dynamic_dimension) or any(d < 0 for d in shape.dimensions):
        raise DynamicShape(
            f"{where}: the shape {element}{list(shape.dimensions)} has a dynamic dimension; "
            "compile for a fixed shape"
        )
    type_ = ArrayType(dtype, tuple(shape.dimensions))
    if type_.rank > MOST_DIMENSIONS:
        raise UnsupportedType(
            f"{where}: an array of {type_.rank} dimensions, astitch has {MOST_DIMENSIONS} at most\n"
            "  reshape it"
        )
    if type_.bytes > MOST_ARRAY_BYTES or any(d > MOST_ARRAY_BYTES for d in type_.shape):
        raise MalformedHlo(
            f"{where}, field shape: {type_} has more bytes than can be addressed; {WRITE_AGAIN}"
        )
    return type_


def unsupported_type(element: str, where: str) -> UnsupportedType:
    known = ", ".join(d.value for d in DType if d is not DType.TOKEN)
    return UnsupportedType(
        f"{where}: element type {element} is not supported; astitch knows {known}"
    )


def show_shape(shape: Any) -> str:
    """For messages; of a large tuple the number of its elements."""
    element = schema.ELEMENT_TYPES.get(shape.element_type, f"type {shape.element_type}")
    if element == "tuple":
        return f"a tuple of {len(shape.tuple_shapes)}"
    return f"{element}[{','.join(map(str, shape.dimensions))}]"


def element_types(shape: Any) -> Iterator[str]:
    """The element types of a shape's arrays."""
    for leaf, _ in shape_leaves(shape):
        yield schema.ELEMENT_TYPES.get(leaf.element_type, "")


def shape_leaves(shape: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """The arrays of a shape, each with its index in the tuples."""
    if schema.ELEMENT_TYPES.get(shape.element_type) != "tuple":
        yield shape, path
    for number, element in enumerate(shape.tuple_shapes):
        yield from shape_leaves(element, (*path, number))


def layout_order(shape: Any, where: str) -> tuple[int, ...]:
    """Dimensions from major to minor; row-major when the shape has no layout."""
    dimensions = tuple(range(len(shape.dimensions)))
    order = tuple(reversed(shape.layout.minor_to_major)) or dimensions
    if tuple(sorted(order)) != dimensions:
        raise MalformedHlo(
            f"{where}: the layout {list(shape.layout.minor_to_major)} does not order the "
            f"{len(dimensions)} dimensions; the dump is damaged, write it again"
        )
    return order


def write_shape(type_: Type, minor_to_major: Sequence[int] | None = None) -> Any:
    if isinstance(type_, TupleType):
        return write_tuple_shape(type_.elements)
    shape = schema.ShapeProto(
        element_type=_ELEMENT_NUMBERS[type_.dtype.value],
        dimensions=type_.shape,
        is_dynamic_dimension=[False] * type_.rank,
    )
    if type_.dtype is DType.TOKEN:
        return shape
    order = reversed(range(type_.rank)) if minor_to_major is None else minor_to_major
    shape.layout.minor_to_major.extend(order)
    shape.layout.SetInParent()  # a scalar has a layout too
    return shape


def write_tuple_shape(types: Sequence[ArrayType]) -> Any:
    return schema.ShapeProto(
        element_type=TUPLE, tuple_shapes=[write_shape(type_) for type_ in types]
    )
