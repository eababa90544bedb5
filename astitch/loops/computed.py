"""What a stage computes for one part of a thread's pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import DType, Literal, Node, PadAttrs, SliceAttrs
from astitch.graph.ops import OPS, monoid_of
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import compute_type, render_call, render_number
from astitch.loops.axes import NEUTRAL, Axis
from astitch.loops.lookups import Lookup
from astitch.loops.schedule import Part, is_shift
from astitch.loops.share_text import ShareText


class Computed:
    """Renders the element-wise ops, shifts and sums of a share."""

    def __init__(self, text: ShareText) -> None:
        self.text, self.body, self.axes, self.cut = text, text.body, text.axes, text.cut

    def render(self, part: Part) -> str:
        """The line that computes a part for the pair q."""
        node = self.body[part.name]
        operands = [self.text.resolve(o, part.number, part.small) for o in node.operands]
        if OPS[node.op].is_reduce:
            value = self.render_sum(node, operands[0])
        elif is_shift(self.axes, node):
            value = self.render_shift(node, operands)
        elif (lookup := self.axes.lookups.get(node.name)) is not None:
            value = self.render_lookup(lookup, operands[1])
        else:
            dtypes = tuple(self.body[o].dtype for o in node.operands)
            call = k.Call(node.op, node.dtype, (), dtypes, node.attrs)
            value = self.text.round(
                node.name, render_call(call, [self.text.render(o) for o in operands])
            )
        if self.text.is_local(part):
            return f"const {compute_type(node.dtype)} {self.text.variable(part)} = {value};"
        return f"{self.text.variable(part)}[q] = {value};"

    def render_lookup(self, lookup: Lookup, place: Part) -> str:
        """A number of a table.  Places beyond it are its nearest ones, as HLO says."""
        if (same := self.text.find_same(lookup.table)) is not None:
            return render_number(same)
        dtype, last = self.body[lookup.table].dtype, self.body[lookup.table].array.size - 1
        # C++ computes integers below 32 bits as int, and min and max take two of one type.
        given = self.body[lookup.places].dtype
        number = given if given.bytes >= DType.S32.bytes else DType.S32
        bounds = [render_number(Literal.of(np.asarray(n, number.numpy))) for n in (0, last)]
        index = f"min(max({self.text.render(place)}, {bounds[0]}), {bounds[1]})"
        return f"load_as<{compute_type(dtype)}>({self.text.find_table(lookup.table)}[{index}])"

    def render_shift(self, node: Node, operands: Sequence[Part]) -> str:
        """Small columns of a row by other lanes than before."""
        width, dimension = self.cut.small_width, self.axes.dimension(node.name, Axis.SMALL)
        assert dimension is not None
        extent = self.body[node.operands[0]].shape[dimension]
        value = self.text.render(operands[0])
        if isinstance(node.attrs, PadAttrs):
            edge = self.text.render(operands[1])
            return f"shift_row<{width}, {node.attrs.low[dimension]}, {extent}>({value}, {edge})"
        assert isinstance(node.attrs, SliceAttrs)
        return f"shift_row<{width}, {-node.attrs.starts[dimension]}, {extent}>({value}, {value})"

    def render_sum(self, node: Node, operand: Part) -> str:
        """A reduction over the small columns of a row, by the lanes that have them."""
        op = monoid_of(node.regions[0])
        assert op is not None
        neutral = render_number(Literal.of(np.asarray(NEUTRAL[op], np.float32)))
        combine = f"[](float a, float b) {{ return {OPS[op].cuda.format('a', 'b')}; }}"
        value = f"{self.text.live(node.operands[0])} ? {self.text.render(operand)} : {neutral}"
        return self.text.round(node.name, f"reduce_row<{self.cut.small_width}>({value}, {combine})")
