"""The Kernel: what an emitted kernel says, statement by statement.  The grammar first:

    Kernel    = (name, parameters, reducers, slots, body, launch numbers)
    Statement = Section | TaskLoop | Current | Previous | Loop | If | Choose | Barrier
              | Index | ChooseIndex | Start | Value | Load | LoadVector | VectorVariable | StoreLane | StoreVector
              | Store
              | Ahead | KeepVector | Advance | Prefetch | Fetch | CopyWait | TakeVector | Keep | KeepSet | States
              | Accumulate | AccumulateProduct | AccumulateElement | Batch | BatchSet | AccumulateBatch
              | AccumulateState | ReduceAcross | ScanAcross | Rounds | FetchRound | Finish
    Expr      = Name | Number | Call | Position | Lane | Element | Field

Integers that address memory are index.Linear forms whose symbols are names of the emitted program; `lane` is
the number of the element within a vector.  Values carry their HLO dtype.
declarations.py names, values.py and lower_loop.py decide, lower.py puts together, emit_cuda.py prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from astitch.graph.index import Linear
from astitch.graph.ir import ArrayType, Attrs, DType, Graph, Literal
from astitch.graph.propagation import Guard

BARRIER_STRIDE = 64
"""32-bit words from one barrier's word to the next: waiting at one does not disturb another."""

FIRST_TAGGED_WORD = 2 * BARRIER_STRIDE
"""Where the tagged words begin (astitch_tagged_words): after the grid's barrier and the launch's number."""

PARTLY = 8
"""Turns of a loop that is unrolled in part: independent loads that a thread has in flight."""

EXACT = frozenset(
    {"maximum", "minimum", "select", "negate", "abs", "clamp", "copy", "sign", "convert",
     "bitcast-convert", "floor", "ceil", "round-nearest-even", "round-nearest-afz"}
)  # fmt: skip
"""Ops whose result, computed in float from values of a narrower float type, is such a value already."""

STRIDED_CHUNK = 4
"""States of a thread that are exchanged at once when a reduction runs across strided threads."""

# ---- expressions: a scalar in its compute type ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A variable of the emitted program."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar constant."""

    value: Literal


@dataclass(frozen=True, slots=True)
class Call:
    """An element-wise HLO op: result dtype, operands with their dtypes.

    shared_divisor: a quotient whose divisor is the same for many elements, so that its reciprocal is computed once.
    ends_narrow: 22 bits of an f32 function are enough (see precision.py).
    """

    op: str
    dtype: DType
    operands: tuple[Expr, ...]
    operand_dtypes: tuple[DType, ...]
    attrs: Attrs
    shared_divisor: bool = False
    ends_narrow: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """An index as a value of `dtype` (iota)."""

    form: Linear
    dtype: DType


@dataclass(frozen=True, slots=True)
class Lane:
    """One element of a vector variable, converted to its compute type."""

    vector: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Element:
    """array[position] of a kept array."""

    array: str
    position: Linear
    dtype: DType
    raw: bool  # kept in its storage type


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a reduction state."""

    state: str
    position: Linear
    number: int


Expr = Name | Number | Call | Position | Lane | Element | Field

# ---- statements -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """const int name = form;"""

    name: str
    form: Linear


@dataclass(frozen=True, slots=True)
class ChooseIndex:
    """const int name = the form of the first case whose guards hold; the last has none."""

    name: str
    cases: tuple[tuple[tuple[Guard, ...], Linear], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """const int name = expr clamped to [0, limit]: a start index known at run time."""

    name: str
    expr: Expr
    dtype: DType
    limit: int


@dataclass(frozen=True, slots=True)
class Value:
    """const T name = expr; rounded to `dtype`."""

    name: str
    dtype: DType
    expr: Expr


@dataclass(frozen=True, slots=True)
class Load:
    """const T name = array[position], converted to the compute type.  array: a parameter or a shared slot."""

    name: str
    dtype: DType
    array: str
    position: Linear


@dataclass(frozen=True, slots=True)
class LoadVector:
    """const Vec<T, width> name = the `width` elements at array + position (aligned).  guards: zeros where one of them
    does not hold, since nobody needs the elements."""

    name: str
    dtype: DType
    array: str
    position: Linear
    width: int
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class VectorVariable:
    """Vec<T, width> name; filled lane by lane, stored at once.

    unrounded: the lanes of this vector wait as floats, which the store rounds, several in one instruction.
    """

    name: str
    dtype: DType
    width: int
    unrounded: bool = False


@dataclass(frozen=True, slots=True)
class StoreLane:
    """unrounded: see VectorVariable."""

    vector: str
    dtype: DType
    expr: Expr
    unrounded: bool = False


@dataclass(frozen=True, slots=True)
class StoreVector:
    """unrounded: see VectorVariable."""

    array: str
    position: Linear
    vector: str
    dtype: DType
    width: int
    unrounded: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """array[position] = expr, converted to the storage type."""

    array: str
    position: Linear
    dtype: DType
    expr: Expr


@dataclass(frozen=True, slots=True)
class Ahead:
    """The words of `count` vectors Vec<T, width> that a thread holds in registers: loaded before a task's turn, or kept
    from phase to phase."""

    name: str
    dtype: DType
    width: int
    count: int


@dataclass(frozen=True, slots=True)
class KeepVector:
    """target[at] = a vector variable.  target: an Ahead, or a shared slot; at counts vectors."""

    target: str
    at: Linear
    dtype: DType
    vector: str
    width: int


@dataclass(frozen=True, slots=True)
class Advance:
    """target[0 .. count) = source[0 .. count): the next task becomes this one."""

    target: str
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The body for a later task of the block, if there is one.

    first: before the loop, for task number `ahead` of the block; else in the loop, for the task `ahead` turns on.
    ring: see TaskLoop; `next_turn` is the task's place in it.
    """

    first: bool
    tasks: int
    body: tuple[Statement, ...]
    ahead: int = 1
    ring: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """target[at] = the `width` elements at array + position (aligned).

    target: an Ahead, or a shared slot, into which they are copied asynchronously; at counts vectors.
    """

    target: str
    at: Linear
    dtype: DType
    array: str
    position: Linear
    width: int


@dataclass(frozen=True, slots=True)
class CopyWait:
    """Until all asynchronous copies of this thread have come but those of the last `pending` Prefetches; None: those
    that no Prefetch holds too."""

    pending: int | None


@dataclass(frozen=True, slots=True)
class TakeVector:
    """const Vec<T, width> name = source[at]: what a Fetch brought."""

    name: str
    dtype: DType
    source: str
    at: Linear
    width: int


@dataclass(frozen=True, slots=True)
class Keep:
    """T name[count]: values of a thread that live across phases, in registers.  raw: in the storage type."""

    name: str
    dtype: DType
    count: int
    raw: bool


@dataclass(frozen=True, slots=True)
class KeepSet:
    """name[position] = expr, in registers or in a shared slot."""

    name: str
    position: Linear
    dtype: DType
    expr: Expr
    raw: bool


@dataclass(frozen=True, slots=True)
class States:
    """Reducer::State name[count], each the identity."""

    name: str
    reducer: int
    count: int


@dataclass(frozen=True, slots=True)
class Accumulate:
    """state[position] = combine(state[position], {values})."""

    state: str
    position: Linear
    reducer: int
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AccumulateProduct:
    """state[position] += a * b, the product not rounded: a sum's own rounding is free anyway."""

    state: str
    position: Linear
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class AccumulateElement:
    """Add one element to the state of a joint reduction (Reducer.joint)."""

    state: str
    position: Linear
    reducer: int
    value: Expr


@dataclass(frozen=True, slots=True)
class Batch:
    """T name[width]: elements that are added to a joint reduction at once."""

    name: str
    dtype: DType
    width: int


@dataclass(frozen=True, slots=True)
class BatchSet:
    """name[lane] = expr."""

    name: str
    dtype: DType
    expr: Expr


@dataclass(frozen=True, slots=True)
class AccumulateBatch:
    """Add the elements of a batch to the state of a joint reduction."""

    state: str
    position: Linear
    reducer: int
    batch: str


@dataclass(frozen=True, slots=True)
class AccumulateState:
    """state[position] = combine(state[position], partial loaded from one array for each field)."""

    state: str
    position: Linear
    reducer: int
    arrays: tuple[str, ...]
    at: Linear


@dataclass(frozen=True, slots=True)
class Part:
    """state[0 .. count) of one reduction.  slot: shared states for sets of threads that are not within one warp
    ("" when none is needed); parts of the same simple reducer with one slot and one state each are reduced together."""

    state: str
    count: int
    reducer: int
    slot: str


@dataclass(frozen=True, slots=True)
class ReduceAcross:
    """Combine the states of independent reductions over threads; every thread of a set gets the totals.

    A set is `threads` threads, `stride` apart.  stride 1: consecutive threads (a row), and all parts share one block
    barrier; else: threads that own the same columns.  butterfly: the states of a set's warps, or of a set that is
    `stride` apart, are combined by the lanes of a warp together, not by each thread alone.  alone: only the first warp
    needs the totals.
    """

    parts: tuple[Part, ...]
    threads: int
    stride: int
    butterfly: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Handover:
    """A row, or the columns of a block, are scanned by the blocks of a team together: this one's total is part number
    `part` of result `element`, or of those from it on, and what the parts before it have comes to all threads through
    two shared states of `slot` for each."""

    area: Area
    element: Linear
    part: Linear
    slot: str


@dataclass(frozen=True, slots=True)
class ScanAcross:
    """Combine each of the states of a set of threads with all before it, in order; backward: with all after it.

    A thread has steps x width states.  `threads` consecutive threads share a row, whose order is (step, thread, number
    within the width); or with columns, threads that are `stride` apart share `width` columns, each in the order
    (thread, step).  slot: shared states, "" where count_scanned needs none.  carry: states with what came before, one
    for each row or column, to which the set's total is added; "" where nothing does.  handover: None: see there.
    """

    state: str
    steps: int
    width: int
    reducer: int
    threads: int
    stride: int
    slot: str
    backward: bool
    carry: str = ""
    columns: bool = False
    handover: Handover | None = None

    @property
    def count(self) -> int:
        """States of a thread."""
        return self.steps * self.width


def count_handed(step: ScanAcross) -> int:
    """Shared states through which a Handover comes."""
    return 2 * step.width * step.stride if step.columns else 2


def count_scanned(step: ScanAcross, block: int) -> int:
    """Shared states that a block exchanges in a scan."""
    if step.columns:
        line = max(step.stride, 32)
        spans = step.threads * step.stride > line
        return block // line * step.stride * step.width if spans else 0
    return step.steps * (block // 32) if step.threads > 32 else 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """for (int variable = 0; variable < count; ++variable), or from the last to the first: tiles that a block works on
    in order.  All threads take part in each."""

    variable: str
    count: int
    backward: bool
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class FetchRound:
    """The body for the round after this one, if there is one, or with `first` before them all for the first.

    variable, count, backward: see Rounds.  It copies into shared memory asynchronously.
    """

    first: bool
    variable: str
    count: int
    backward: bool
    body: tuple[Statement, ...]


def count_lines(block: int, stride: int) -> int:
    """States that a block exchanges for each state of its threads, when it combines over threads `stride` apart: the
    lanes of a warp that hold several of a set have combined theirs.  One place of each line is free, so that those of
    one column lie in different banks."""
    return block // max(stride, 32) * (stride + 1)


@dataclass(frozen=True, slots=True)
class Total:
    """State of `reducer` that the gathering threads of a Meeting find in `found` and every thread gets in `state`,
    through the shared states `slot`."""

    found: str
    state: str
    reducer: int
    slot: str


@dataclass(frozen=True, slots=True)
class Area:
    """Where the blocks of a team exchange the states of one reduction: `results` elements with `parts` parts each.

    It starts `offset` tagged words after the words of the grid's barrier; a state takes `words` of them.  The parts
    of an element lie side by side, or with elements_inside all elements of a part.
    """

    offset: int
    results: int
    parts: int
    words: int
    elements_inside: bool = False

    @property
    def strides(self) -> tuple[int, int]:
        """Tagged words from one element to the next, and from one part to the next."""
        if self.elements_inside:
            return self.words, self.results * self.words
        return self.parts * self.words, self.words


@dataclass(frozen=True, slots=True)
class Publish:
    """Part number `part` of result `element` is state[at], for all blocks of the team."""

    area: Area
    element: Linear
    part: Linear
    state: str
    at: Linear
    reducer: int


@dataclass(frozen=True, slots=True)
class Collect:
    """state[at] joins parts rank, rank + members ... of result `element`, each as soon as its block has published
    it."""

    area: Area
    element: Linear
    state: str
    at: Linear
    reducer: int
    members: int
    rank: Linear


@dataclass(frozen=True, slots=True)
class Meeting:
    """The warps of a block gather what the `team` blocks published `lag` tasks ago: one warp for each of the `packed`
    rows of a task, in turns.

    body: what a warp does for row `to`.
    """

    team: int
    lag: int
    packed: int
    body: tuple[Statement, ...]
    totals: tuple[Total, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """state[0 .. count) = combine(init, state): the init value of a reduce, applied once."""

    state: str
    count: int
    reducer: int
    inits: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """for (int variable = 0; variable < count; ++variable).  unroll: fully, or in part, `together` turns at once.
    bound: ends the loop earlier, so that its body needs no guard."""

    variable: str
    count: int
    unroll: bool
    body: tuple[Statement, ...]
    bound: Linear | None = None
    together: int = PARTLY


@dataclass(frozen=True, slots=True)
class If:
    guards: tuple[Guard, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """The body of the first case whose guards hold."""

    cases: tuple[If, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """T name; the first branch whose guards hold computes and assigns it."""

    name: str
    dtype: DType
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    guards: tuple[Guard, ...]
    body: tuple[Statement, ...]
    result: Expr


@dataclass(frozen=True, slots=True)
class TaskLoop:
    """for (int task = first; task < tasks; task += blocks).  once: every block has at most one task.
    ring: places of a ring in shared memory, `turn` being that of this task; 0: no ring.
    lag: so many turns more after the last task, for what Previous holds."""

    tasks: int
    once: bool
    body: tuple[Statement, ...]
    ring: int = 0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Current:
    """In a task loop with lag: the body for this turn's task, if there is one."""

    tasks: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Previous:
    """In a task loop with lag: the body for the task `lag` turns before, if there was one.  ring: see TaskLoop."""

    ring: int
    body: tuple[Statement, ...]
    lag: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """One task loop with what comes before and after it.

    Its threads are numbered (to, ty, tx) in a block of outer_threads x row_threads x col_threads, or (ty, to, tx) if
    packed_inside; `first`, the first task of a block, starts `offset` blocks further on, so that the loops of a level
    spread over all blocks.
    """

    number: int
    title: str
    offset: int
    outer_threads: int
    row_threads: int
    col_threads: int
    body: tuple[Statement, ...]
    packed_inside: bool = False


@dataclass(frozen=True, slots=True)
class Common:
    """Values that are the same in all threads and that several sections read: in scope until the kernel ends."""

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """level: block or global."""

    level: str
    reason: str


Statement = (
    Index
    | ChooseIndex
    | Start
    | Value
    | Load
    | LoadVector
    | VectorVariable
    | StoreLane
    | StoreVector
    | Store
    | Ahead
    | KeepVector
    | Advance
    | Prefetch
    | Fetch
    | CopyWait
    | TakeVector
    | Keep
    | KeepSet
    | States
    | Accumulate
    | AccumulateProduct
    | AccumulateElement
    | Batch
    | BatchSet
    | AccumulateBatch
    | AccumulateState
    | ReduceAcross
    | ScanAcross
    | Rounds
    | FetchRound
    | Publish
    | Collect
    | Meeting
    | Finish
    | Loop
    | If
    | Switch
    | Choose
    | Section
    | Common
    | TaskLoop
    | Current
    | Previous
    | Barrier
)


Nest = (
    Section
    | Common
    | TaskLoop
    | Rounds
    | FetchRound
    | Current
    | Previous
    | Prefetch
    | Meeting
    | Loop
    | If
)
"""Statements with one body."""


def list_statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """The statements of a body and those inside of them."""
    for statement in body:
        yield statement
        if isinstance(statement, Switch):
            yield from list_statements(statement.cases)
        elif isinstance(statement, Choose):
            for branch in statement.branches:
                yield from list_statements(branch.body)
        elif isinstance(statement, Nest):
            yield from list_statements(statement.body)


def find_read(*parts: object) -> set[str]:
    """Names of the scalars that statements, expressions or tuples of them read."""
    found: set[str] = set()
    pending: list[Any] = list(parts)
    while pending:
        part = pending.pop()
        if isinstance(part, Name):
            found.add(part.name)
        elif isinstance(part, tuple):
            pending += part
        else:
            pending += [getattr(part, name) for name in _FIELDS.get(type(part), ())]
    return found


# ---- the kernel -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reducer:
    """The combiner of a reduce: state fields in their accumulation dtypes, and how two states combine.

    identity[i]: value of field i that changes nothing, or the init value where no identity is known.
    commutative: combine(a, b) and combine(b, a) have the same bits.  joint: see joint_regions.py, or ''.
    """

    number: int
    fields: tuple[DType, ...]
    region: Graph
    identity: tuple[Literal, ...]
    commutative: bool = False
    joint: str = ""

    @property
    def state_bytes(self) -> int:
        """sizeof(State): fields in their compute types, padded as C++ does."""
        sizes = [4 if f.is_narrow_float else f.bytes for f in self.fields]
        total = 0
        for size in sizes:
            total = -(-total // size) * size + size
        return -(-total // max(sizes)) * max(sizes)

    @property
    def payload(self) -> int:
        """32-bit words of a state that blocks exchange."""
        return sum(2 if f.bytes == 8 else 1 for f in self.fields)

    @property
    def words(self) -> int:
        """Tagged words, of 64 bits, that a state takes in an exchange: one 32-bit word beside its tag, or up to three
        in a pair, which is written and read at once."""
        return 1 if self.payload == 1 else 2 * -(-self.payload // 3)


@dataclass(frozen=True, slots=True)
class Slot:
    """A region of the block's shared memory.  reducer: it holds states of that reducer, else elements of dtype.

    first, last: the span of (loop, phase) steps over which it is live.
    """

    name: str
    dtype: DType | None
    reducer: int | None
    count: int
    bytes: int
    first: tuple[int, int]
    last: tuple[int, int]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array in global memory.  source: the graph value or scratch that it is."""

    name: str
    dtype: DType
    source: str
    written: bool
    read: bool


@dataclass(frozen=True, slots=True)
class Scratch:
    """Global scratch of a kernel: `type` elements under the name `source` of its Parameter.

    offset: in bytes, where they lie in the memory that the kernel gets for all of its scratch."""

    source: str
    type: ArrayType
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """grid, block, shared_bytes: the launch.  blocks_per_sm: residency that the launch bounds ask for (0: free).
    global_barriers: meetings of the whole grid.  teams: how many teams the grid is cut into that meet by themselves.
    tagged_words: of all areas in which teams exchange states.
    sources: op_name metadata of the ops inside, for the comment at the top."""

    name: str
    parameters: tuple[Parameter, ...]
    scratch: tuple[Scratch, ...]
    reducers: tuple[Reducer, ...]
    slots: tuple[Slot, ...]
    body: tuple[Statement, ...]
    grid: int
    block: int
    shared_bytes: int
    blocks_per_sm: int
    global_barriers: int
    block_barriers: int
    wide_index: bool
    pointer_table: bool
    reads_bytes: int
    writes_bytes: int
    sources: tuple[str, ...]
    teams: int = 0
    tagged_words: int = 0

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters that are passed one by one: all but scratch, for which one pointer follows them."""
        scratch = {array.source for array in self.scratch}
        return tuple(p for p in self.parameters if p.source not in scratch)

    @property
    def scratch_bytes(self) -> int:
        return max((array.offset + array.type.bytes for array in self.scratch), default=0)

    @property
    def cooperative(self) -> bool:
        """Do blocks wait for each other, so that all must be resident together?"""
        return self.global_barriers > 0 or self.teams > 0

    @property
    def barrier_words(self) -> int:
        """32-bit words that start at zero: the grid's, those that number the launches, and the areas of teams."""
        if not self.teams:
            return BARRIER_STRIDE if self.cooperative else 0
        return FIRST_TAGGED_WORD + 2 * self.tagged_words


_FIELDS = {
    kind: tuple(field.name for field in fields(kind))
    for kind in tuple(globals().values())
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == __name__
}
"""Of each statement and expression."""
