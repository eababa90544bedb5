"""The text of one share of a loop: names of parts, lines for a thread's pairs, and where elements are in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astitch.graph.ir import ConstantAttrs, IotaAttrs, Literal, Node
from astitch.kernel.cuda_text import STORAGE, compute_type, render_number
from astitch.loops.analysis import Affine, Carried, Loop, Place
from astitch.loops.axes import Axis
from astitch.loops.cuts import Share
from astitch.loops.schedule import Part, Read, Resolver, count_parts


@dataclass(frozen=True, slots=True)
class Access:
    """Where an element of a value lies in an array: strides of rows, columns and turns; index: of the turn."""

    row: int
    column: int
    turn: int
    index: Affine | None

    def render(self, row: str, column: str, turn: str) -> str:
        """The position as C."""
        terms = [_times(row, self.row), _times(column, self.column)]
        if self.index is not None:
            index = self.index
            at = str(index.offset) if not index.scale else f"{turn} * {index.scale}"
            if index.scale and index.offset:
                at += f" + {index.offset}"
            terms.append(f"({at}) * {self.turn}")
        return " + ".join(term for term in terms if term) or "0"


def _times(name: str, stride: int) -> str:
    return "" if not stride else name if stride == 1 else f"{name} * {stride}"


class ShareText:
    """The lines of one share, and what its text calls things.

    operands: names of the states that it reads, as found so far.  results: names of those that it writes.  stage_of:
    by part, the stage that computes it.  handed: parts that the next turn gets.  locals: parts that only their own
    stage uses, so that they need no array.  constant_tables: those that are looked up, by the names of their arrays.
    """

    def __init__(self, loop: Loop, share: Share) -> None:
        self.share, self.loop, self.body = share, loop, loop.body
        self.axes, self.steps, self.cut = share.axes, share.steps, share.cut
        resolver = Resolver(loop, share.axes)
        self.resolve, self.parts_of = resolver.resolve, resolver.parts_of
        self.roles = dict(zip(self.body.parameters, loop.roles, strict=True))
        self.reads: Mapping[str, Read] = {read.name: read for read in self.steps.reads}
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []
        self.operands: dict[int, str] = {}
        self.constant_tables: dict[str, Literal] = {}
        self.results = {state: f"result_{state}" for state in share.used}
        self.stage_of = {p: s for s, parts in enumerate(self.steps.computed) for p in parts}
        for multiply in (*self.steps.products, *self.steps.crossings):
            for part in multiply.results:
                self.stage_of[part] = multiply.stage + 1
        self.handed = {
            part
            for role in loop.roles
            if isinstance(role, Carried) and role.value in self.axes.live
            for part in self.parts_of(role.value)
        }
        self.locals = self.find_locals()

    # ---- lines -----------------------------------------------------------------------------------------------------

    def out(self, depth: int, text: str) -> None:
        """A line at a depth."""
        self.lines.append("  " * depth + text)

    def pairs(self, depth: int, small: bool, lines: Sequence[str]) -> None:
        """Lines for each pair of a thread."""
        if lines:
            self.out(depth, "#pragma unroll")
            self.out(depth, f"for (int q = 0; q < {self.owned(small)}; ++q) {{")
            self.lines += ["  " * (depth + 1) + line for line in lines]
            self.out(depth, "}")

    def declare(self, depth: int, part: Part, prefix: str = "", start: str = "") -> None:
        """An array for a part of each pair of a thread.  start: its initializer."""
        dtype = compute_type(self.body[part.name].dtype)
        self.out(depth, f"{dtype} {prefix}{self.variable(part)}[{self.owned(part.small)}]{start};")

    # ---- names and values ------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A variable's name that no other has, close to the HLO name."""
        base = re.sub(r"\W", "_", hint, flags=re.ASCII)[:40].strip("_")
        base = base if base[:1].isalpha() else f"v_{base}"
        name, number = f"{base}_v", 0
        while name in self.taken:
            number += 1
            name = f"{base}_v{number}"
        self.taken.add(name)
        return name

    def variable(self, part: Part) -> str:
        """The array or local that holds a part for a thread's pairs."""
        if part.name not in self.names:
            self.names[part.name] = self.fresh(part.name)
        return f"{self.names[part.name]}_{'s' if part.small else ''}{part.number}"

    def owned(self, small: bool) -> int:
        """Pairs of a thread."""
        return self.cut.small_owned if small else self.cut.owned

    def operand(self, state: int) -> str:
        """The parameter from which a state is read, counted as read."""
        return self.operands.setdefault(state, f"state_{state}")

    def find_same(self, table: str) -> Literal | None:
        """The number that all elements of a table are, where the loop starts with it."""
        parameters = self.body.parameters
        return self.loop.starts.get(parameters.index(table)) if table in parameters else None

    def find_table(self, name: str) -> str:
        """The parameter in which a table lies, counted as read."""
        node = self.body[name]
        if not isinstance(node.attrs, ConstantAttrs):
            return self.operand(self.body.parameters.index(name))
        array = f"table_{self.body.order[name]}"  # in each share of the loop
        self.constant_tables[array] = node.attrs.value
        return array

    def is_local(self, part: Part) -> bool:
        """Is a computed part used in its own stage only, so that it needs no array?"""
        return part in self.locals

    def stage_of_value(self, part: Part) -> int:
        """The stage that computes a part; 0 for what is read."""
        return self.stage_of.get(part, 0)

    def render(self, part: Part, q: str = "q") -> str:
        """The value of a part for pair q."""
        node = self.body[part.name]
        if part.name in self.loop.integers:
            return self.render_integer(node, self.loop.integers[part.name])
        if isinstance(node.attrs, ConstantAttrs):
            value = node.attrs.value
            return render_number(type(value)(value.dtype, (), value.data))
        if isinstance(node.attrs, IotaAttrs):
            return self.render_iota(part, node.attrs.dimension, q)
        name = self.variable(part)
        return name if self.is_local(part) else f"{name}[{q}]"

    def render_integer(self, node: Node, value: Affine) -> str:
        """An integer that the turn decides."""
        turn, ending = ("(long long)turn", "LL") if node.dtype.bytes == 8 else ("turn", "")
        terms = f"{value.offset}{ending}"
        if value.scale:
            terms = f"{turn} * {value.scale}{ending} + {terms}"
        return f"({STORAGE[node.dtype]})({terms})"

    def render_iota(self, part: Part, dimension: int, q: str) -> str:
        """The row or column of a pair."""
        row, column = self.place(part, q)
        axis = self.axes.of[part.name][dimension]
        at = {Axis.ONE: "0", Axis.ROW: row}.get(axis, column)
        return self.round(part.name, f"({compute_type(self.body[part.name].dtype)})({at})")

    def round(self, name: str, value: str) -> str:
        """A computed f32, rounded to the type of a value."""
        dtype = self.body[name].dtype
        return f"round_to<{STORAGE[dtype]}>({value})" if dtype.is_narrow_float else value

    def find_locals(self) -> set[Part]:
        """The parts that only their own stage uses."""
        used: dict[Part, set[int]] = {}
        for stage, parts in enumerate(self.steps.computed):
            for part in parts:
                for operand in self.body[part.name].operands:
                    source = self.resolve(operand, part.number, part.small)
                    used.setdefault(source, set()).add(stage)
        for multiply in self.steps.crossings:
            for part in multiply.own:
                used.setdefault(part, set()).add(multiply.stage)
        return {
            part
            for part, stage in self.stage_of.items()
            if part.name not in self.axes.products
            and used.get(part, set()) <= {stage}
            and part not in self.handed
        }

    # ---- memory ----------------------------------------------------------------------------------------------------

    def access(self, name: str, state: int, place: Place | None) -> Access:
        """Where the elements of a value of the body are in an array of the state."""
        shape = self.body[self.body.parameters[state]].shape
        strides = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = strides[d + 1] * shape[d + 1]
        row, column = (self.axes.dimension(name, axis) for axis in (Axis.ROW, Axis.COLUMN))
        if column is None:
            column = self.axes.dimension(name, Axis.SMALL)
        return Access(
            strides[row] if row is not None else 0,
            strides[column] if column is not None else 0,
            strides[place.dimension] if place else 0,
            place.index if place else None,
        )

    def load(self, read: Read, part: Part, turn: str, q: str = "q") -> str:
        """What pair q reads in a turn."""
        if (start := self.loop.starts.get(read.state)) is not None:
            return render_number(start)
        access = self.access(read.name, read.state, read.place)
        dtype = self.body[read.name].dtype
        at = access.render(*self.place(part, q), turn)
        return f"load_as<{compute_type(dtype)}>({self.operand(read.state)}[{at}])"

    def read_parts(self, read: Read) -> list[Part]:
        """The parts of what is read."""
        count = count_parts(self.loop, self.axes, read.name)
        return [Part(read.name, i, read.small) for i in range(count)]

    def small_extent(self, name: str) -> int:
        """Small columns of a value; all where it has none."""
        dimension = self.axes.dimension(name, Axis.SMALL)
        return self.cut.small if dimension is None else self.body[name].shape[dimension]

    def live(self, name: str) -> str:
        """Does the thread have an element of a value of small columns?"""
        extent = self.small_extent(name)
        more = "" if extent == self.cut.small else f" && small_place[q] < {extent}"
        return f"small_live[q]{more}"

    def place(self, part: Part, q: str = "q") -> tuple[str, str]:
        """Row and column of a pair."""
        if part.small:
            extent = self.small_extent(part.name)
            place = f"small_place[{q}]"
            return (
                f"small_row[{q}]",
                place if extent == self.cut.small else f"min({place}, {extent - 1})",
            )
        more = part.number * self.cut.units
        return f"row[{q}]", f"(unit[{q}] + {more})" if more else f"unit[{q}]"
