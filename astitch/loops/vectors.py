"""Numbers of a row that lie side by side, moved by one instruction where their address allows it.

Where a thread has all numbers of a row, its neighbour's are a row away.  Number by number each instruction would touch
as many lines of memory as the warp has rows; a vector of four does so once for four numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astitch.device.gpu import ACCESS_BYTES
from astitch.graph.ir import DType
from astitch.kernel.cuda_text import STORAGE, compute_type
from astitch.loops.schedule import Part, Read
from astitch.loops.share_text import Access, ShareText


def list_runs(text: ShareText, dtype: DType, access: Access, count: int) -> Iterator[range]:
    """The numbers of a row in runs that are a vector each: powers of two, at multiples of their length."""
    width = 1
    alone = text.axes.units == 1 and access.column == 1 and not dtype.is_complex
    strides = (access.row, access.turn if access.index else 0)
    if alone and dtype is not DType.PRED:
        while 2 * width * dtype.bytes <= ACCESS_BYTES and not any(s % (2 * width) for s in strides):
            width *= 2
    first = 0
    while first < count:
        while width > count - first:
            width //= 2
        yield range(first, first + width)
        first += width


def load_parts(
    text: ShareText, pairs: Sequence[tuple[Read, Part]], turn: str, prefix: str = ""
) -> Iterator[str]:
    """The lines by which pair q gets what it reads in a turn.  pairs: all parts of each value, in order."""
    parts: dict[Read, list[Part]] = {}
    for read, part in pairs:
        parts.setdefault(read, []).append(part)
    for read, own in parts.items():
        if own[0].small or read.state in text.loop.starts:
            runs = [range(i, i + 1) for i in range(len(own))]
        else:
            access = text.access(read.name, read.state, read.place)
            runs = [*list_runs(text, text.body[read.name].dtype, access, len(own))]
        for run in runs:
            yield _load_run(text, read, [own[i] for i in run], turn, prefix)


def _load_run(text: ShareText, read: Read, parts: Sequence[Part], turn: str, prefix: str) -> str:
    names = [f"{prefix}{text.variable(part)}[q]" for part in parts]
    if len(parts) == 1:
        return f"{names[0]} = {text.load(read, parts[0], turn)};"
    dtype = text.body[read.name].dtype
    at = text.access(read.name, read.state, read.place).render(*text.place(parts[0]), turn)
    vector = f"Vec<{STORAGE[dtype]}, {len(parts)}>"
    source = f"*reinterpret_cast<const {vector}*>({text.operand(read.state)} + {at})"
    moves = (
        f"{name} = load_as<{compute_type(dtype)}>(loaded.v[{i}]);" for i, name in enumerate(names)
    )
    return f"{{ const {vector} loaded = {source}; {' '.join(moves)} }}"


def render_stored(dtype: DType, array: str, at: str, values: Sequence[str]) -> str:
    """The statement that stores values from a position on."""
    kind = STORAGE[dtype]
    stored = [f"store_as<{kind}>({value})" for value in values]
    if len(stored) == 1:
        return f"{array}[{at}] = {stored[0]};"
    vector = f"Vec<{kind}, {len(stored)}>"
    return f"*reinterpret_cast<{vector}*>({array} + {at}) = {vector}{{{{{', '.join(stored)}}}}};"
