"""The entry of a kernel as CUDA text: its parameters, in the form in which its launcher passes them.

Takes an Entry and a LaunchAbi, hands on the lines in front of the body, which is the same under every ABI.  CuPy
launches under the default: the barrier words are a parameter, and a table of pointers stands for many parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from astitch.errors import IllegalProduct


@dataclass(frozen=True, slots=True)
class SliceStart:
    """Where a slice starts along one dimension: a number that a pointer points to, held between 0 and `last`.

    kind: its C++ type.  stride: elements from one start to the next.
    """

    kind: str
    last: int
    stride: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A parameter, by its number, that is one piece of a larger array.

    The launcher passes the array.  Behind all parameters it passes the same array as it was before, which the kernel
    does not touch, and the starts.
    """

    parameter: int
    starts: tuple[SliceStart, ...]


STATIC_BYTES = 48 << 10
"""Of shared memory that a kernel has without its launch's doing, on every GPU."""

RESERVED_BYTES = 1 << 10
"""Of shared memory that the system takes for each block (compute capability 8.0 on)."""

UNIT_BYTES = 128
"""In which blocks get shared memory (compute capability 8.0 on; before that 256, of which the system takes none)."""

LEAST_DIVIDED_BYTES = 8 << 10
"""The least shared memory of an SM that has any: the rest of it is L1 cache (CUDA's guide, compute capabilities)."""


@dataclass(frozen=True, slots=True)
class LaunchAbi:
    """How a launcher passes a kernel its pointers.

    pointer_table: a kernel of many pointers takes the address of an array of them; else each is a parameter.
    own_words: the barrier words are an array of the kernel's module, zero when the module is loaded and kept from
    launch to launch; else the last parameter.
    tokens: a kernel whose blocks wait for each other takes two more parameters, which it does not touch.
    aliased: numbers of parameters that may share memory with another one, so that they are not `__restrict__`.
    slices: of the parameters that are pieces of arrays.
    static_shared: the launcher takes L1 cache from a kernel that it gives shared memory, so that less is under way from
    memory.  Then shared memory is the kernel's own where it may be, see is_static.
    """

    pointer_table: bool = True
    own_words: bool = False
    tokens: bool = False
    aliased: frozenset[int] = frozenset()
    slices: tuple[Slice, ...] = ()
    static_shared: bool = False

    def is_static(self, shared_bytes: int, waiting: int) -> bool:
        """Is a kernel's shared memory its own, so that its launch gives it none?

        waiting: its blocks that must be resident on an SM together, since they wait for each other; 0: none wait.  They
        fit however the driver divides the SM's memory, as long as one of them does.
        """
        if not self.static_shared or not 0 < shared_bytes <= STATIC_BYTES:
            return False
        taken = -(-(shared_bytes + RESERVED_BYTES) // UNIT_BYTES) * UNIT_BYTES
        return waiting * taken <= LEAST_DIVIDED_BYTES

    def declare_arena(self, shared_bytes: int, waiting: int) -> str:
        """The statement by which a kernel has shared memory."""
        kind = "STATIC" if self.is_static(shared_bytes, waiting) else "SHARED"
        return f"ASTITCH_{kind}_ARENA({shared_bytes});"


CUPY = LaunchAbi()
"""The ABI of the executor and of the emulation."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer that a kernel takes.

    kind: the C++ type of what it points to.  restrict: the kernel reaches that memory through no other pointer.
    """

    kind: str
    name: str
    restrict: bool = False

    @property
    def type(self) -> str:
        return f"{self.kind}* __restrict__" if self.restrict else f"{self.kind}*"

    def render_cast(self, source: str) -> str:
        """The definition of the pointer from an untyped one."""
        return f"{self.type} const {self.name} = reinterpret_cast<{self.kind}*>({source});"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a kernel is called and takes.

    bounds: the arguments of `__launch_bounds__`.  barrier_words: 32-bit words at which its blocks meet; 0 where they
    do not wait for each other.  many: are the pointers too many for parameters of CuPy's launch?
    cluster: blocks of a cluster of the hardware; 0: there are none.
    """

    name: str
    bounds: str
    pointers: tuple[Pointer, ...]
    barrier_words: int = 0
    many: bool = False
    cluster: int = 0

    @property
    def head(self) -> str:
        cluster = f"__cluster_dims__({self.cluster}, 1, 1) " if self.cluster else ""
        return f'extern "C" __global__ void {cluster}__launch_bounds__({self.bounds}) {self.name}('

    @property
    def words(self) -> str:
        """The name of the array that holds the barrier words, where the kernel's module has them."""
        return f"{self.name}_words"


_BARRIER = Pointer("unsigned int", "barrier")
_TOKENS = "const unsigned int* before, unsigned int* done"


def render_entry(entry: Entry, abi: LaunchAbi) -> Iterator[str]:
    """The lines up to the body: the array of barrier words, the parameters, the pointers made of them.

    Raises IllegalProduct where the ABI names a parameter that the kernel has not, or slices of one with many.
    """
    pointers = _share_memory(entry, abi)
    cuts = list(_cut_slices(entry, abi, pointers))
    waits, own_words = entry.barrier_words > 0, entry.barrier_words > 0 and abi.own_words
    if waits and not own_words:
        pointers.append(_BARRIER)
    tokens = [_TOKENS] if waits and abi.tokens else []
    if own_words:
        yield f"__device__ __align__(256) unsigned int {entry.words}[{entry.barrier_words}];"
    if entry.many:
        yield from _render_untyped(entry, abi, pointers, tokens, own_words)
        return
    parameters = [*(f"{p.type} {p.name}" for p in pointers), *tokens]
    yield entry.head
    for number, parameter in enumerate(parameters):
        yield f"    {parameter}{',' if number + 1 < len(parameters) else ') {'}"
    if own_words:
        yield f"  {_BARRIER.type} const {_BARRIER.name} = {entry.words};"
    yield from cuts


def _cut_slices(entry: Entry, abi: LaunchAbi, pointers: list[Pointer]) -> Iterator[str]:
    """The definitions of the parameters that are slices; adds the pointers that these are made of."""
    if abi.slices and entry.many:
        raise IllegalProduct(f"kernel {entry.name}: no parameter of a table can be a slice")
    for cut in abi.slices:
        _require_parameter(entry, cut.parameter, "is a slice")
        part = pointers[cut.parameter]
        whole = replace(part, name=f"{part.name}_whole", restrict=False)
        pointers[cut.parameter] = whole
        pointers.append(Pointer(f"const {part.kind}", f"{part.name}_before"))
        offsets: list[str] = []
        for number, start in enumerate(cut.starts):
            pointer = Pointer(f"const {start.kind}", f"{part.name}_start_{number}")
            pointers.append(pointer)
            held = f"hlo_clamp(({start.kind})0, *{pointer.name}, ({start.kind}){start.last})"
            offsets.append(f"(long long){held} * {start.stride}")
        yield f"  {part.type} const {part.name} = {whole.name} + ({' + '.join(offsets)});"


def _require_parameter(entry: Entry, number: int, what: str) -> None:
    count = len(entry.pointers)
    if number >= count:
        raise IllegalProduct(
            f"kernel {entry.name}: parameter {number} {what}, but the kernel has {count}"
        )


def _share_memory(entry: Entry, abi: LaunchAbi) -> list[Pointer]:
    """The pointers, without `__restrict__` where the ABI lets them share memory."""
    pointers = list(entry.pointers)
    for number in abi.aliased:
        _require_parameter(entry, number, "may share memory")
        pointers[number] = replace(pointers[number], restrict=False)
    return pointers


def _render_untyped(
    entry: Entry, abi: LaunchAbi, pointers: list[Pointer], tokens: list[str], own_words: bool
) -> Iterator[str]:
    """The parameters on one line, as a table or one by one; below, a typed pointer for each."""
    if abi.pointer_table:
        parameters = ["unsigned char* const* pointers"]
        sources = [f"pointers[{number}]" for number in range(len(pointers))]
    else:
        sources = [f"p{number}" for number in range(len(pointers))]
        parameters = [f"unsigned char* {source}" for source in sources]
    yield f"{entry.head}{', '.join([*parameters, *tokens])}) {{"
    if own_words:
        pointers, sources = [*pointers, _BARRIER], [*sources, entry.words]
    for pointer, source in zip(pointers, sources, strict=True):
        yield f"  {pointer.render_cast(source)}"
