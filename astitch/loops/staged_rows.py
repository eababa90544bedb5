"""Rows that a warp moves in one piece, through shared memory.

Where a thread has all numbers of a row that no vector moves, as the nine of a rotation, each of its instructions would
touch as many lines of memory as the warp has rows.  The rows of a warp lie side by side: it copies all of them, line by
line, and each thread takes its own from shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from astitch.graph.ir import DType
from astitch.kernel.cuda_text import STORAGE, compute_type
from astitch.loops.analysis import Loop
from astitch.loops.cuts import WARP, Share, StagedRow, count_staged_bytes, find_staged
from astitch.loops.schedule import Read
from astitch.loops.share_text import ShareText


class StagedRows:
    """The states of a share that are moved so.  reads, writes: by state.  warp_bytes: shared memory of a warp."""

    def __init__(self, loop: Loop, share: Share) -> None:
        self.loop, self.cut = loop, share.cut
        staged = find_staged(loop, share.axes, share.steps, share.used, share.cut)
        self.reads, self.writes = staged
        self.warp_bytes = count_staged_bytes(staged)

    @property
    def bytes(self) -> int:
        """Of a block."""
        return self.cut.block // WARP * self.warp_bytes

    def declare(self, text: ShareText, offset: int) -> None:
        """The shared arrays, and the rows of the thread's warp."""
        for dtype in dict.fromkeys(self.loop.types[s].dtype for s in (*self.reads, *self.writes)):
            elements = self.bytes // dtype.bytes
            text.out(1, f"ASTITCH_SHARED({STORAGE[dtype]}, {_slot(dtype)}, {offset}, {elements});")
        if self.bytes:
            text.out(1, f"const int warp_first = group * {self.cut.rows} + lane / {WARP} * {WARP};")
            text.out(1, f"const int warp_rows = min({WARP}, {text.axes.rows} - warp_first);")

    def load(self, text: ShareText, reads: Sequence[Read]) -> Iterator[str]:
        """The lines by which the thread gets its rows of states."""
        known = {read.state: read for read in reads}
        for batch in _list_batches(self.reads):
            yield "__syncwarp();  // all have read what was there"
            for state, row in batch:
                source = f"{text.operand(state)} + warp_first * {row.numbers}"
                slot, start = self._place(state, row)
                yield f"stage_rows<{row.numbers}>({slot}, {start}, {source}, warp_rows);"
            yield "__syncwarp();"
            for state, row in batch:
                slot, start = self._place(state, row)
                kind = compute_type(self.loop.types[state].dtype)
                for part in text.read_parts(known[state]):
                    at = f"{start} + lane % {WARP} * {row.stride} + {part.number}"
                    value = f"load_as<{kind}>({slot}[{at}])"
                    yield f"if (stored[q]) {text.variable(part)}[q] = {value};"

    def store(self, text: ShareText, values: Mapping[int, Sequence[str]]) -> Iterator[str]:
        """The lines by which the thread gives its rows of states.  values: their numbers."""
        for batch in _list_batches(self.writes):
            yield "__syncwarp();  // all have read what was there"
            for state, row in batch:
                slot, start = self._place(state, row)
                kind = STORAGE[self.loop.types[state].dtype]
                for number, value in enumerate(values[state]):
                    at = f"{start} + lane % {WARP} * {row.stride} + {number}"
                    yield f"{slot}[{at}] = store_as<{kind}>({value});"
            yield "__syncwarp();"
            for state, row in batch:
                slot, start = self._place(state, row)
                target = f"{text.results[state]} + warp_first * {row.numbers}"
                yield f"give_rows<{row.numbers}>({target}, {slot}, {start}, warp_rows);"

    def _place(self, state: int, row: StagedRow) -> tuple[str, str]:
        """The shared array of a state's type, and where in it the rows of the thread's warp begin."""
        dtype = self.loop.types[state].dtype
        before = WARP * row.offset // dtype.bytes
        start = f"lane / {WARP} * {self.warp_bytes // dtype.bytes}"
        return _slot(dtype), f"{start} + {before}" if before else start


def _list_batches(rows: Mapping[int, StagedRow]) -> Iterator[Sequence[tuple[int, StagedRow]]]:
    for _, batch in itertools.groupby(rows.items(), lambda item: item[1].batch):
        yield list(batch)


def _slot(dtype: DType) -> str:
    return f"rows_{dtype.value}"
