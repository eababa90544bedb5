"""Where an HLO instruction has the attributes of an op: one table, by which hlo/ reads and writes them.

A Field pairs an attribute with a field of HloInstructionProto.  Nothing here knows the message classes: a form gets a
message and the name of its field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astitch.graph.ir import Attrs, DimensionsAttrs, NoAttrs, WindowDimension


@dataclass(frozen=True, slots=True)
class Form:
    """How a field holds an attribute.

    read: (message, field name) -> value; raises IndexError or KeyError where the message has none that is legal.
    write: (message, field name, value).
    """

    read: Callable[[Any, str], Any]
    write: Callable[[Any, str, Any], None]


def _extend(message: Any, name: str, values: Any) -> None:
    getattr(message, name).extend(values)


NUMBER = Form(getattr, setattr)
"""One number, truth value or byte string."""

FROM_ONE = Form(lambda m, name: getattr(m, name) or 1, setattr)
"""A number that is 1 where the message does not say it."""

TEXT = Form(
    lambda m, name: getattr(m, name).decode(errors="replace"),
    lambda m, name, value: setattr(m, name, value.encode()),
)

NUMBERS = Form(lambda m, name: tuple(getattr(m, name)), _extend)

ONLY = Form(
    lambda m, name: getattr(m, name)[0], lambda m, name, value: getattr(m, name).append(value)
)
"""The first number of a row."""


def one_of(names: Mapping[int, str]) -> Form:
    """An enum by the names of its numbers."""
    numbers = {name: number for number, name in names.items()}
    return Form(
        lambda m, name: names[getattr(m, name)],
        lambda m, name, value: setattr(m, name, numbers[value]),
    )


def several_of(names: Mapping[int, str], default: tuple[int, ...]) -> Form:
    """A row of enums, `default` where the message has none."""
    numbers = {name: number for number, name in names.items()}
    return Form(
        lambda m, name: tuple(names[n] for n in getattr(m, name) or default),
        lambda m, name, value: getattr(m, name).extend([numbers[v] for v in value]),
    )


def each(part: str, default: int = 0) -> Form:
    """One number for each dimension: field `part` of a row of messages."""

    def write(message: Any, name: str, values: Any) -> None:
        rows = getattr(message, name)
        while len(rows) < len(values):
            rows.add()
        for row, value in zip(rows, values, strict=True):
            setattr(row, part, value)

    return Form(
        lambda m, name: tuple(getattr(row, part) or default for row in getattr(m, name)), write
    )


def _read_window(message: Any, name: str) -> tuple[WindowDimension, ...]:
    return tuple(
        WindowDimension(
            size=d.size,
            stride=d.stride or 1,
            padding_low=d.padding_low,
            padding_high=d.padding_high,
            window_dilation=d.window_dilation or 1,
            base_dilation=d.base_dilation or 1,
            reversed=d.window_reversal,
        )
        for d in getattr(message, name)
    )


def _write_window(message: Any, name: str, window: Any) -> None:
    for d in window:
        getattr(message, name).add(
            size=d.size,
            stride=d.stride,
            padding_low=d.padding_low,
            padding_high=d.padding_high,
            window_dilation=d.window_dilation,
            base_dilation=d.base_dilation,
            window_reversal=d.reversed,
        )


WINDOW = Form(_read_window, _write_window)

PRECISIONS = several_of({0: "DEFAULT", 1: "HIGH", 2: "HIGHEST"}, default=(0, 0))


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute and its field of HloInstructionProto; a dot in `path` goes into a message of it.

    is_kept: the message that holds the field is written even where it says nothing.
    """

    name: str
    path: str
    form: Form = NUMBER
    is_kept: bool = True

    def read(self, instruction: Any) -> Any:
        """The attribute's value.  Raises IndexError or KeyError."""
        *parts, last = self.path.split(".")
        for part in parts:
            instruction = getattr(instruction, part)
        return self.form.read(instruction, last)

    def write(self, instruction: Any, value: Any) -> None:
        *parts, last = self.path.split(".")
        for part in parts:
            instruction = getattr(instruction, part)
            if self.is_kept:
                instruction.SetInParent()
        self.form.write(instruction, last, value)


@dataclass(frozen=True, slots=True)
class Attributes:
    """The class of an op's attributes and the fields that hold them.

    place: the field that a message about wrong attributes names; empty: the first of `fields`.
    """

    of: Callable[..., Attrs] = NoAttrs
    fields: tuple[Field, ...] = ()
    place: str = ""

    @property
    def field(self) -> str:
        """The field of HloInstructionProto that messages name."""
        if self.place or not self.fields:
            return self.place or "opcode"
        return self.fields[0].path.partition(".")[0]

    def read(self, instruction: Any) -> Attrs:
        """The attributes of an HloInstructionProto.  Raises IndexError or KeyError."""
        return self.of(**{field.name: field.read(instruction) for field in self.fields})

    def write(self, instruction: Any, attrs: Attrs) -> None:
        for field in self.fields:
            field.write(instruction, getattr(attrs, field.name))


NO_ATTRIBUTES = Attributes()


DIMENSIONS = Attributes(DimensionsAttrs, (Field("dimensions", "dimensions", NUMBERS),))
