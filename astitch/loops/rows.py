"""Rows between threads and blocks: what others multiply by, told in shared memory or as tagged words."""

from __future__ import annotations

from collections.abc import Iterator

from astitch.kernel.cuda_text import render_number
from astitch.loops.analysis import Carried
from astitch.loops.layout import Layout
from astitch.loops.share_text import ShareText

MAX_WORDS = 16
"""Words that a thread waits for at once; beyond it waits more often."""

CHUNK = 8
"""Words that a thread asks for in one round."""


class RowExchange:
    """Emits how the rows of a share get to the blocks that multiply them."""

    def __init__(self, text: ShareText, layout: Layout) -> None:
        self.text, self.layout = text, layout
        self.loop, self.body, self.axes = text.loop, text.body, text.axes
        self.steps, self.cut = text.steps, text.cut

    def declare(self) -> None:
        """The shared memory of the rows."""
        for number, moved in enumerate(self.steps.moved):
            slot = self.layout.slots[number]
            count = slot.buffers * self.layout.slot_elements(moved)
            self.text.out(1, f"ASTITCH_SHARED(float, rows_{number}, {slot.offset}, {count});")

    def start_rows(self) -> None:
        """Zeros where rows are padded, and the rows of the first turn."""
        cut = self.cut
        for number, moved in enumerate(self.steps.moved):
            count = self.layout.slots[number].buffers * self.layout.slot_elements(moved)
            if cut.stride > cut.units:
                self.text.out(
                    1,
                    f"for (int i = int(threadIdx.x); i < {count}; i += {cut.block}) rows_{number}[i] = 0.0f;",
                )
        if cut.stride > cut.units and self.steps.moved:
            self.text.out(1, "__syncthreads();  // the zeros are there")
        for number, moved in enumerate(self.steps.moved):
            if not moved.carried:
                continue
            for at, part in enumerate(moved.parts):
                read = self.text.reads[part.name]
                access = self.text.access(read.name, read.state, None)
                self.text.out(
                    1,
                    f"for (int i = int(threadIdx.x); i < {cut.rows * cut.units}; i += {cut.block}) {{",
                )
                self.text.out(
                    2,
                    f"const int r = min(group * {cut.rows} + i / {cut.units}, {self.axes.rows - 1}), "
                    f"u = i % {cut.units} + {part.number * cut.units};",
                )
                start = self.loop.starts.get(read.state)
                value = (
                    render_number(start)
                    if start is not None
                    else f"load_as<float>({self.text.operand(read.state)}[{access.render('r', 'u', '0')}])"
                )
                to = f"{at * cut.rows * cut.stride} + i / {cut.units} * {cut.stride} + i % {cut.units}"
                self.text.out(2, f"rows_{number}[{to}] = {value};")
                self.text.out(1, "}")

    def tell(self, stage: int) -> Iterator[str]:
        """The parts that others multiply by, to them: in shared memory, or as tagged words."""
        cut = self.cut
        for number, moved in enumerate(self.steps.moved):
            for at, part in enumerate(moved.parts):
                if moved.carried:
                    role = self.text.roles[part.name]
                    assert isinstance(role, Carried)
                    value, when = self.text.resolve(role.value, part.number), "turn + 1"
                    condition = f"told[q] && turn + 1 < {self.loop.trips}"
                else:
                    value, when, condition = part, "turn", "told[q]"
                if self.text.stage_of_value(value) != stage:
                    continue
                side = f"({when}) % 2"
                text = self.text.render(value)
                if self.layout.exchanges:
                    area = self.layout.word_offset(number)
                    size = len(moved.parts) * cut.rows * cut.units
                    to = f"words + {area} + {side} * {size} + ({at * cut.rows} + inside[q]) * {cut.units} + unit[q]"
                    send = f"astitch_publish_word({to}, same_bits<unsigned>({text}), tag + unsigned({when}));"
                else:
                    size = self.layout.slot_elements(moved)
                    to = f"{side} * {size} + ({at * cut.rows} + inside[q]) * {cut.stride} + unit[q]"
                    send = f"rows_{number}[{to}] = {text};"
                yield f"if ({condition}) {send}"

    def receive(self, stage: int) -> None:
        """The rows that a stage's products read."""
        cut = self.cut
        here = [(i, m) for i, m in enumerate(self.steps.moved) if m.stage == stage]
        crossings = any(m.stage == stage for m in self.steps.crossings)
        if not here and not crossings:
            return
        if self.layout.exchanges:
            if any(self.layout.slots[number].reused for number, _ in here):
                self.text.out(2, "__syncthreads();  // the rows of the stage before are read")
            for number, moved in here:
                count = len(moved.parts) * cut.rows
                each = -(-count * cut.units // cut.block)
                chunk = min(each, CHUNK if each > MAX_WORDS else MAX_WORDS)
                form = f"{count}, {cut.units}, {cut.stride}, {cut.block}, {chunk}"
                area, size = self.layout.word_offset(number), count * cut.units
                call = (
                    f"receive_rows<{form}>(rows_{number}, {self.layout.slot_start(number)}, "
                    f"words + {area} + turn % 2 * {size}, tag + unsigned(turn));"
                )
                self.text.out(2, f"if (turn > 0) {call}" if moved.carried else call)
        self.text.out(2, "__syncthreads();  // the rows are there")
