"""The Kernel: what an emitted kernel says, statement by statement.  The grammar first:

    Kernel    = (name, parameters, reducers, slots, body, launch numbers)
    Statement = Index | ChooseIndex | Start | Value | Load | LoadVector | VectorVariable | StoreLane | StoreVector
              | Store | Keep | KeepSet                                            (element_statements.py)
              | PrefetchRegisters | KeepVector | Advance | Prefetch | Fetch | CopyWait | TakeVector | FetchRound
                                                                                 (prefetch_statements.py)
              | States | Accumulate | AccumulateProduct | AccumulateElement | Batch | BatchSet | AccumulateBatch
              | AccumulateState | ReduceAcross | ScanAcross | SortAcross | Finish  (reduction_statements.py)
              | Publish | Collect | Meeting                                          (block_group_statements.py)
              | Loop | If | Switch | Choose | Rounds | TaskLoop | Current | Previous | Section | Common | Barrier
                                                                                     (nest_statements.py)
    Expr      = Name | Number | Call | Position | Lane | Element | Field                 (expressions.py)

Each says of itself what it reads, writes, defines and contains, in the words of statement.py.
Integers that address memory are index.Linear forms whose symbols are names of the emitted program; `lane` is
the number of the element within a vector.  Values carry their HLO dtype.
declarations.py names, values.py and lower_loop.py decide, lower.py puts together, emit_cuda.py prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.ir import ArrayType, DType, Graph, Literal
from astitch.kernel.block_group_statements import Area, Collect, Meeting, Publish, Total
from astitch.kernel.element_statements import (
    ChooseIndex,
    Index,
    Keep,
    KeepSet,
    Load,
    LoadVector,
    Start,
    Store,
    StoreLane,
    StoreVector,
    Value,
    VectorVariable,
)
from astitch.kernel.expressions import (
    EXACT,
    Call,
    Element,
    Expr,
    Field,
    Lane,
    Name,
    Number,
    Position,
)
from astitch.kernel.nest_statements import (
    PARTLY,
    Barrier,
    Branch,
    Choose,
    Common,
    Current,
    If,
    Loop,
    Previous,
    Rounds,
    Section,
    Switch,
    TaskLoop,
)
from astitch.kernel.prefetch_statements import (
    Advance,
    CopyWait,
    Fetch,
    FetchRound,
    KeepVector,
    Prefetch,
    PrefetchRegisters,
    TakeVector,
)
from astitch.kernel.reduction_statements import (
    SORTED_CHUNK,
    STRIDED_CHUNK,
    Accumulate,
    AccumulateBatch,
    AccumulateElement,
    AccumulateProduct,
    AccumulateState,
    Batch,
    BatchSet,
    Finish,
    Handover,
    Part,
    ReduceAcross,
    ScanAcross,
    SortAcross,
    States,
    count_handed,
    count_lines,
    count_scanned,
    count_sorted,
)
from astitch.kernel.statement import Statement

__all__ = [
    "BARRIER_STRIDE",
    "EXACT",
    "FIRST_TAGGED_WORD",
    "PARTLY",
    "SORTED_CHUNK",
    "STATEMENTS",
    "STRIDED_CHUNK",
    "Accumulate",
    "AccumulateBatch",
    "AccumulateElement",
    "AccumulateProduct",
    "AccumulateState",
    "Advance",
    "Area",
    "Barrier",
    "Batch",
    "BatchSet",
    "Branch",
    "Call",
    "Choose",
    "ChooseIndex",
    "Collect",
    "Common",
    "CopyWait",
    "Current",
    "Element",
    "Expr",
    "Fetch",
    "FetchRound",
    "Field",
    "Finish",
    "Handover",
    "If",
    "Index",
    "Keep",
    "KeepSet",
    "KeepVector",
    "Kernel",
    "Lane",
    "Load",
    "LoadVector",
    "Loop",
    "Meeting",
    "Name",
    "Number",
    "Parameter",
    "Part",
    "Position",
    "Prefetch",
    "PrefetchRegisters",
    "Previous",
    "Publish",
    "ReduceAcross",
    "Reducer",
    "Rounds",
    "ScanAcross",
    "Scratch",
    "Section",
    "Slot",
    "SortAcross",
    "Start",
    "Statement",
    "States",
    "Store",
    "StoreLane",
    "StoreVector",
    "Switch",
    "TakeVector",
    "TaskLoop",
    "Total",
    "Value",
    "VectorVariable",
    "count_handed",
    "count_lines",
    "count_scanned",
    "count_sorted",
]

BARRIER_STRIDE = 64
"""32-bit words from one barrier's word to the next: waiting at one does not disturb another."""

FIRST_TAGGED_WORD = 2 * BARRIER_STRIDE
"""Where the tagged words begin (astitch_tagged_words): after the grid's barrier and the launch's number."""


STATEMENTS: tuple[type[Statement], ...] = (
    Index,
    ChooseIndex,
    Start,
    Value,
    Load,
    LoadVector,
    VectorVariable,
    StoreLane,
    StoreVector,
    Store,
    Keep,
    KeepSet,
    PrefetchRegisters,
    KeepVector,
    Advance,
    Prefetch,
    Fetch,
    CopyWait,
    TakeVector,
    FetchRound,
    States,
    Accumulate,
    AccumulateProduct,
    AccumulateElement,
    Batch,
    BatchSet,
    AccumulateBatch,
    AccumulateState,
    ReduceAcross,
    ScanAcross,
    SortAcross,
    Finish,
    Publish,
    Collect,
    Meeting,
    Loop,
    If,
    Switch,
    Choose,
    Rounds,
    TaskLoop,
    Current,
    Previous,
    Section,
    Common,
    Barrier,
)
"""All kinds of statements."""


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
        return sum(max(f.bytes // 4, 1) for f in self.fields)

    @property
    def words(self) -> int:
        """Tagged words, of 64 bits, that a state takes in an exchange.  One word holds 32 bits beside its tag.  A
        pair of words, written and read at once, holds up to three times 32 bits."""
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
    """An array in global memory.  source: the graph value or scratch that it is.

    whole, start: the source of the parameter in which it lies, and the element of that with which it begins; it is not
    passed then.
    """

    name: str
    dtype: DType
    source: str
    written: bool
    read: bool
    whole: str = ""
    start: int = 0


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
    global_barriers: meetings of the whole grid.  block_groups: how many groups the grid is cut into whose blocks meet
    by themselves.
    tagged_words: of all areas in which block groups exchange states.
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
    block_groups: int = 0
    tagged_words: int = 0

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters that are passed one by one: all but pieces of others, and scratch, for which one pointer
        follows them."""
        scratch = {array.source for array in self.scratch}
        return tuple(p for p in self.parameters if p.source not in scratch and not p.whole)

    @property
    def wholes(self) -> frozenset[str]:
        """The sources of the parameters of which the kernel names only pieces."""
        return frozenset(p.whole for p in self.parameters if p.whole)

    @property
    def scratch_bytes(self) -> int:
        return max((array.offset + array.type.bytes for array in self.scratch), default=0)

    @property
    def cooperative(self) -> bool:
        """Do blocks wait for each other, so that all must be resident together?"""
        return self.global_barriers > 0 or self.block_groups > 0

    @property
    def waiting_blocks(self) -> int:
        """Blocks that wait for each other and may be on one SM; 0: none waits."""
        if not self.cooperative:
            return 0
        return min(self.blocks_per_sm or self.grid, self.grid)

    @property
    def barrier_words(self) -> int:
        """32-bit words that start at zero: the grid's, those that number the launches, and the areas of block
        groups."""
        if not self.block_groups:
            return BARRIER_STRIDE if self.cooperative else 0
        return FIRST_TAGGED_WORD + 2 * self.tagged_words
