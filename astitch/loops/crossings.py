"""Products to and from small columns, which every block holds: spread to units, or collected from them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from astitch.loops.axes import Form
from astitch.loops.cuts import count_crossing, crossing_floats
from astitch.loops.layout import Layout
from astitch.loops.rows import CHUNK
from astitch.loops.schedule import Multiply
from astitch.loops.share_text import ShareText

TILES = ("left", "parts", "sums")
"""The tiles that a block keeps of such a product: its left side, the parts it adds up, the sums of all."""


class Crossings:
    """Emits the products of a share to and from small columns."""

    def __init__(self, text: ShareText, layout: Layout) -> None:
        self.text, self.layout = text, layout
        self.loop, self.body, self.axes = text.loop, text.body, text.axes
        self.steps, self.cut = text.steps, text.cut

    def declare(self) -> None:
        """The shared memory of what blocks keep of them."""
        for number, multiply in enumerate(self.steps.crossings):
            sizes = crossing_floats(multiply, self.cut)
            for name, place, floats in zip(TILES, self.layout.tiles[number], sizes, strict=True):
                if floats:
                    form = f"{name}_{number}, {place}, {2 * floats}"
                    self.text.out(1, f"ASTITCH_SHARED(float, {form});")

    def load_crossing(self, number: int) -> None:
        """A thread's share of a matrix between units and small columns."""
        cut, multiply = self.cut, self.steps.crossings[number]
        product = multiply.product
        state = self.body.parameters.index(product.matrix)
        shape = self.loop.types[state].shape
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        row, k_stride, column = (
            strides[d] if d is not None else 0
            for d in (product.row_dimension, product.k_dimension, product.column_dimension)
        )
        matrix = self.text.operand(state)
        self.text.out(1, f"float cross_{number}[{count_crossing(multiply, cut)}];")
        if product.form is Form.COLLECT:
            own, k = cut.own_units, len(multiply.own)
            at = (
                f"small_row[q] * {row} + small_place[q] * {column} + "
                f"((i / {own}) * {cut.units} + member * {own} + i % {own}) * {k_stride}"
            )
            lines = [
                "#pragma unroll",
                f"for (int i = 0; i < {k * own}; ++i)",
                f"  cross_{number}[q * {k * own} + i] = load_as<float>({matrix}[{at}]);",
            ]
            self.text.pairs(1, True, lines)
            return
        turns = -(-cut.small // cut.copies)
        at = (
            f"row[q] * {row} + k * {k_stride} + "
            f"(({multiply.first} + i % {multiply.parts}) * {cut.units} + unit[q]) * {column}"
        )
        lines = [
            "#pragma unroll",
            f"for (int i = 0; i < {turns * multiply.parts}; ++i) {{",
            f"  const int k = i / {multiply.parts} * {cut.copies} + lane % {cut.copies};",
            f"  cross_{number}[q * {turns * multiply.parts} + i] = "
            f"k < {cut.small} ? load_as<float>({matrix}[{at}]) : 0.0f;",
            "}",
        ]
        self.text.pairs(1, False, lines)

    def put_aside(self, stage: int, small: bool) -> Iterator[str]:
        """The left sides of products to and from small columns, where the block's threads find them."""
        cut = self.cut
        for number, multiply in enumerate(self.steps.crossings):
            spread = multiply.product.form is Form.SPREAD
            if multiply.stage != stage or spread is not small:
                continue
            size = crossing_floats(multiply, cut)[0]
            for at, part in enumerate(multiply.own):
                if spread:
                    condition = "small_live[q]"
                    place = f"small_inside[q] * {cut.small_width} + small_place[q]"
                else:
                    condition, own = "told[q]", cut.own_units
                    place = f"({at * cut.rows} + inside[q]) * {own} + unit[q] - member * {own}"
                yield f"if ({condition}) left_{number}[turn % 2 * {size} + {place}] = {self.text.render(part)};"

    def cross(self, stage: int) -> None:
        """The products of a stage to and from small columns."""
        for number, multiply in enumerate(self.steps.crossings):
            if multiply.stage == stage and multiply.product.form is Form.SPREAD:
                self.spread(number, multiply)
        for number, multiply in enumerate(self.steps.crossings):
            if multiply.stage == stage and multiply.product.form is Form.COLLECT:
                self.collect(number, multiply)

    def spread(self, number: int, multiply: Multiply) -> None:
        """Emits a product from small columns, which every block has, to units.  The copies of a pair share the columns,
        and add up."""
        cut, parts = self.cut, multiply.results
        turns, width = -(-cut.small // cut.copies), cut.small_width
        size = crossing_floats(multiply, cut)[0]
        for part in parts:
            self.text.declare(2, part)
        lines = [f"float sum[{len(parts)}] = {{}};", "#pragma unroll"]
        lines += [
            f"for (int i = 0; i < {turns}; ++i) {{",
            f"  const int k = min(i * {cut.copies} + lane % {cut.copies}, {cut.small - 1});",
            f"  const float x = left_{number}[turn % 2 * {size} + inside[q] * {width} + k];",
        ]
        for g in range(len(parts)):
            weight = f"cross_{number}[(q * {turns} + i) * {len(parts)} + {g}]"
            lines.append(f"  sum[{g}] = fmaf(x, {weight}, sum[{g}]);")
        lines.append("}")
        for g, part in enumerate(parts):
            value = f"add_copies<{cut.copies}>(sum[{g}])"
            lines.append(f"{self.text.variable(part)}[q] = {self.text.round(part.name, value)};")
        self.text.pairs(2, False, lines)

    def collect(self, number: int, multiply: Multiply) -> None:
        """Emits a product from units to small columns.  Each block adds up what its units give, then its share of all
        pairs over the blocks of the group; everyone gets the sums."""
        cut, (part,) = self.cut, multiply.results
        own, k, name = cut.own_units, len(multiply.own), multiply.product.name
        left, parts, sums = crossing_floats(multiply, cut)
        self.text.declare(2, part)
        at = f"left_{number}[turn % 2 * {left} + ((i / {own}) * {cut.rows} + small_inside[q]) * {own} + i % {own}]"
        lines = [
            "float sum = 0.0f;",
            "#pragma unroll",
            f"for (int i = 0; i < {k * own}; ++i) sum = fmaf({at}, cross_{number}[q * {k * own} + i], sum);",
        ]
        if not self.layout.exchanges:
            self.text.pairs(
                2,
                True,
                [*lines, f"{self.text.variable(part)}[q] = {self.text.round(name, 'sum')};"],
            )
            return
        before = sum(m.product.form is Form.COLLECT for m in self.steps.crossings[:number])
        part_words, sum_words = self.layout.collect_words
        area = self.layout.moved_words + 2 * before * (part_words + sum_words)
        to_parts = f"words + {area} + turn % 2 * {part_words}"
        to_sums = f"words + {area + 2 * part_words} + turn % 2 * {sum_words}"
        pair = f"(small_inside[q] * {cut.small} + small_place[q])"
        send = (
            f"if (small_live[q]) astitch_publish_word({to_parts} + {pair} * {cut.members} + member, "
            "same_bits<unsigned>(sum), tag + unsigned(turn));"
        )
        self.text.pairs(2, True, [*lines, send])
        pairs, mine = cut.rows * cut.small, f"member * {cut.sums}"
        self.text.out(
            2,
            f"const int sums_{number}_count = max(0, min({cut.sums}, {pairs} - {mine}));",
        )
        words, chunk = cut.sums * cut.members, min(CHUNK, -(-cut.sums * cut.members // cut.block))
        self.text.out(
            2,
            f"receive_words<{words}, {cut.block}, {chunk}>(parts_{number}, turn % 2 * {parts}, "
            f"{to_parts} + {mine} * {cut.members}, sums_{number}_count * {cut.members}, tag + unsigned(turn));",
        )
        self.text.out(2, "__syncthreads();  // the parts of all blocks are there")
        self.text.out(
            2,
            f"add_parts<{cut.members}, {cut.block}>(parts_{number}, turn % 2 * {parts}, {to_sums} + {mine}, "
            f"sums_{number}_count, tag + unsigned(turn));",
        )
        each = -(-pairs // cut.block)
        form = f"{cut.rows}, {cut.small}, {cut.small_width}, {cut.block}, {min(each, CHUNK)}"
        self.text.out(
            2,
            f"receive_rows<{form}>(sums_{number}, turn % 2 * {sums}, {to_sums}, tag + unsigned(turn));",
        )
        self.text.out(2, "__syncthreads();  // the sums are there")
        value = f"sums_{number}[turn % 2 * {sums} + small_inside[q] * {cut.small_width} + small_place[q]]"
        self.text.pairs(
            2, True, [f"{self.text.variable(part)}[q] = {self.text.round(name, value)};"]
        )
