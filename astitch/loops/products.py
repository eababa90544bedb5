"""Products by whole rows: their matrices stay in registers and shared memory for all turns."""

from __future__ import annotations

from collections.abc import Iterator

from astitch.loops.layout import Layout
from astitch.loops.share_text import ShareText


class RowProducts:
    """Emits the products of a share by whole rows."""

    def __init__(self, text: ShareText, layout: Layout) -> None:
        self.text, self.layout = text, layout
        self.loop, self.body, self.axes = text.loop, text.body, text.axes
        self.steps, self.cut = text.steps, text.cut
        self.share = text.share

    def declare(self) -> None:
        """The shared memory of the matrices."""
        cut = self.cut
        for number, multiply in enumerate(self.steps.products):
            if left := self.layout.shared_vectors(number):
                count = left * 4 * multiply.parts * cut.width * cut.block
                offset = self.layout.weights[number]
                self.text.out(1, f"ASTITCH_SHARED(float, matrix_{number}, {offset}, {count});")

    def spans(self, number: int) -> Iterator[tuple[int, int, int, int, bool]]:
        """A product's vectors: part of k, first vector of it, how many, where they are kept, in registers?"""
        vectors, held, seen = self.cut.vectors, self.share.held[number], 0
        for part in range(len(self.steps.products[number].left)):
            inside = min(vectors, max(0, held - seen))
            if inside:
                yield part, 0, inside, seen, True
            if inside < vectors:
                yield part, inside, vectors - inside, max(0, seen + inside - held), False
            seen += vectors

    def load_matrix(self, number: int) -> None:
        """A thread's share of a matrix, to registers and shared memory."""
        multiply, cut = self.steps.products[number], self.cut
        state = self.body.parameters.index(multiply.product.matrix)
        extents = self.loop.types[state].shape
        k_stride = extents[1] if multiply.product.k_dimension == 0 else 1
        column_stride = extents[1] if multiply.product.column_dimension == 0 else 1
        columns = multiply.parts * cut.width
        if self.share.held[number]:
            self.text.out(1, f"float weights_{number}[{self.share.held[number] * 4 * columns}];")
        for part, first, count, kept, registers in self.spans(number):
            if registers:
                put = f"weights_{number}[(({kept} + i) * 4 + e) * {columns} + c] = w;"
            else:
                at = f"((({kept} + i) * {columns} + c) * {cut.block} + int(threadIdx.x)) * 4 + e"
                put = f"matrix_{number}[{at}] = w;"
            exact = cut.stride == cut.units and cut.block * cut.width == cut.own_units * cut.lanes
            form = (
                f"{first}, {count}, {cut.units}, {cut.lanes}, {cut.width}, {multiply.parts}, "
                f"{str(exact).lower()}"
            )
            self.text.out(
                1,
                f"load_matrix<{form}>([&](int i, int e, int c, float w) {{ {put} }}, {self.text.operand(state)}, "
                f"{part * cut.units}, {k_stride}, {column_stride}, {multiply.first}, first_unit, end_unit, lane);",
            )

    def multiply(self, stage: int) -> None:
        """The products of a stage by whole rows."""
        cut = self.cut
        for number, multiply in enumerate(self.steps.products):
            if multiply.stage != stage:
                continue
            columns = multiply.parts * cut.width
            parts = multiply.results
            for part in parts:
                self.text.declare(2, part)
            self.text.out(2, "{")
            self.text.out(3, f"float sum[{cut.rows * columns}] = {{}};")
            for part_number, first, count, kept, registers in self.spans(number):
                source, at = multiply.left[part_number]
                start = f"{self.layout.slot_start(source)} + {at * cut.rows * cut.stride}"
                form = f"{first}, {count}, {cut.rows}, {columns}, {cut.lanes}, {cut.stride}"
                if registers:
                    self.text.out(
                        3,
                        f"add_product<{kept}, {form}>(sum, weights_{number}, rows_{source}, {start}, lane);",
                    )
                else:
                    place = kept * columns * cut.block * 4
                    self.text.out(
                        3,
                        f"add_shared_product<{form}, {cut.block}>(sum, matrix_{number}, {place}, "
                        f"rows_{source}, {start}, lane);",
                    )
            pairs = cut.rows * cut.width
            self.text.out(3, f"share_pairs<{cut.lanes}, {pairs}, {multiply.parts}>(sum, lane);")
            values = [f"sum[q * {multiply.parts} + {i}]" for i in range(multiply.parts)]
            lines = [
                f"{self.text.variable(part)}[q] = {self.text.round(part.name, value)};"
                for part, value in zip(parts, values, strict=True)
            ]
            self.text.pairs(3, False, lines)
            self.text.out(2, "}")
