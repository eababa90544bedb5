"""A kernel of one turn -> the CUDA text of a kernel that turns by itself, and how it is launched.

The text of the turn stands in a loop.  What a turn reads and writes goes by pointers that change: each value of the
state has two places, and a turn reads the one that the turn before has written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import ACCESS_BYTES, Gpu
from astitch.emit_cuda import emit_parts, list_headers
from astitch.graph.ir import ArrayType, ConstantAttrs, DType, Graph, Literal
from astitch.graph.ops import OPS
from astitch.graph.storage import storage_name, stored_value
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import STORAGE, comment, compute_type, render_number, render_value
from astitch.kernel.entry import CUPY, Entry, LaunchAbi, Pointer, render_entry
from astitch.kernel.visit_statements import list_statements
from astitch.loops.analysis import Affine, Invariant, Loop, Place, Stack
from astitch.loops.row_dimensions import is_varied
from astitch.loops.turns import Level, Turns
from astitch.program.steps import ALIGNMENT_BYTES, CudaKernel

ARENA = "ASTITCH_SHARED_ARENA"
TOGETHER = "the next turn reads what this one has written"


@dataclass(frozen=True)
class TurnsPlan:
    """A loop as one kernel, which is the kernel of a turn in a loop.

    kernel: of a turn.  graph: what it computes: that of the turns, as it was when it was planned.
    used: the parts of the final state that are its results.  turn_us: microseconds projected for a turn; now_us: for
    one as the loop would be else.  cluster: are the blocks one cluster of the hardware, where XLA launches them?
    on_chip: does what a block keeps for itself lie in its shared memory?
    """

    turns: Turns
    graph: Graph
    kernel: k.Kernel
    used: tuple[int, ...]
    turn_us: float
    now_us: float
    cluster: bool = False
    on_chip: bool = False

    @property
    def loop(self) -> Loop:
        return self.turns.loop

    @property
    def us(self) -> float:
        """Microseconds projected for all turns; for one where nobody knows how many there are."""
        return self.turn_us * max(self.loop.trips, 1)

    @property
    def spared_us(self) -> float:
        """How many fewer that is than it would be else."""
        return self.now_us * max(self.loop.trips, 1) - self.us

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.kernel.block

    @property
    def grid(self) -> int:
        return self.kernel.grid * self.turns.blocks

    @property
    def blocks_per_sm(self) -> int:
        return self.kernel.blocks_per_sm

    def __str__(self) -> str:
        turns = f"{self.loop.trips} turns" if self.turns.counted else "turns until its condition"
        blocks = "a block" if self.grid == 1 else f"{self.grid} blocks"
        if self.turns.blocks > 1:
            rows = math.prod(level.rows for level in self.turns.levels)
            blocks = f"{blocks}, each with {rows} of the rows,"
        kind = "cluster" if self.cluster else "global"
        return (
            f"%{self.loop.node.name}: {turns} in one kernel of {blocks} of {self.block} threads, "
            f"{self.kernel.global_barriers} {kind} barriers in a turn; {self.turn_us:.1f} us projected for a turn, "
            f"{self.now_us:.1f} as XLA's loop"
        )


def in_one_block(kernel: k.Kernel) -> k.Kernel:
    """A kernel of one block: its threads meet where blocks would."""
    body = tuple(replace(s, level="block") if isinstance(s, k.Barrier) else s for s in kernel.body)
    return replace(kernel, body=body, global_barriers=0)


def keep_on_chip(plan: TurnsPlan, gpu: Gpu) -> TurnsPlan:
    """The plan with each block's scratch in its shared memory, if no fewer blocks fit an SM so.

    Asynchronous copies read memory alone.  What a turn hands on to the next is in reach sooner there, and takes none.
    """
    kernel = plan.kernel
    if kernel.grid > 1 or _copies_scratch(plan):
        return plan
    kept = replace(plan, on_chip=True)
    shared_bytes = emit_turns(kept, "kept").kernel.shared_bytes
    registers = gpu.max_registers(kernel.block, max(plan.blocks_per_sm, 1))
    fits = gpu.blocks_per_sm(kernel.block, registers, shared_bytes) >= max(plan.blocks_per_sm, 1)
    return kept if fits else plan


def _copies_scratch(plan: TurnsPlan) -> bool:
    """Does a turn copy what it or the turn before has written into shared memory asynchronously?"""
    kernel, slots = plan.kernel, {slot.name for slot in plan.kernel.slots}
    roles = dict(zip(plan.graph.parameters, plan.loop.roles, strict=False))
    fixed = {
        parameter.name
        for parameter in kernel.arguments
        if not parameter.written and isinstance(roles.get(parameter.source, Invariant()), Invariant)
    }
    return any(
        isinstance(s, k.Fetch) and s.target in slots and s.array not in fixed
        for s in list_statements(kernel.body)
    )


@dataclass(frozen=True)
class TurnsText:
    """The kernel of a loop that turns by itself.  operands: states.  constants: arrays of the turn's.  scratch_bytes:
    memory that it writes besides the results."""

    kernel: CudaKernel
    operands: tuple[int, ...]
    constants: tuple[Literal, ...]
    scratch_bytes: int


def emit_turns(plan: TurnsPlan, name: str, abi: LaunchAbi = CUPY) -> TurnsText:
    """The kernel of a plan under a name, in the form that a launcher of this ABI takes."""
    return _Emitter(plan, name, abi).emit()


class _Emitter:
    """Writes the kernel.

    made, slices: by state, the output of the turn that it becomes, or a slice of it.
    copies: the states that no kernel computes, and where from they are copied.
    keys: by carried state, what it becomes: a value of the turn, or a copy.  States may become the same.
    owners: by key, the state that it has two places for; the slice of a stack needs none.  numbers: of the places.
    stacks: by value that a kernel writes as the slice of a stack, this stack.
    stacked: the other stacks, whose slices are copied, and where from.
    unwritten: by stack, where the blocks leave a slice that another block writes.
    asked: the two places of what the condition says, where the turn computes it.
    """

    def __init__(self, plan: TurnsPlan, name: str, abi: LaunchAbi) -> None:
        self.plan, self.name, self.abi = plan, name, abi
        self.turns, self.kernel, self.graph = plan.turns, plan.kernel, plan.graph
        self.loop = plan.loop
        self.scratch_bytes = self.kernel.scratch_bytes
        self.states = {p: n for n, p in enumerate(self.graph.parameters[: len(self.loop.types)])}
        self.made = dict(zip(self.turns.carried, self.graph.outputs, strict=False))
        first = len(self.turns.carried)
        self.slices = dict(zip(self.turns.stacks, self.graph.outputs[first:], strict=False))
        self.written = {p.source for p in self.kernel.arguments if p.written}
        self.operands: dict[int, None] = {}
        self.lines: list[str] = []
        self.choose_places()

    def out(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def emit(self) -> TurnsText:
        kernel, plan = self.kernel, self.plan
        reducers, declared, body = emit_parts(kernel)
        if self.clusters:
            body = [
                line.replace("ASTITCH_GLOBAL_BARRIER", "ASTITCH_CLUSTER_BARRIER") for line in body
            ]
        if kernel.grid == 1:
            declared, body = ([*map(_as_only_block, lines)] for lines in (declared, body))
        self.begin()
        self.turn(body)
        self.end()
        if plan.on_chip:
            declared = [*self.place_on_chip(), *(n for n in declared if ARENA not in n)]
        before = [*self.place_rows(), *(f"  {line}" for line in declared)]
        constants = self.list_constants()
        states = tuple(sorted(self.operands))
        pointers = [self.point_to_operand(n) for n in states]
        pointers += [Pointer(f"const {STORAGE[p.dtype]}", p.name, True) for p, _ in constants]
        pointers += [Pointer(STORAGE[self.type(n).dtype], f"result_{n}") for n in plan.used]
        if self.memory_bytes:
            pointers.append(Pointer("unsigned char", "scratch"))
        words = k.BARRIER_STRIDE if kernel.grid > 1 else 0
        bounds = f"{kernel.block}, {plan.blocks_per_sm}"
        cluster = kernel.grid if self.clusters else 0
        entry = Entry(self.name, bounds, tuple(pointers), words, cluster=cluster)
        lines = [*reducers, *render_entry(entry, self.abi), *before, *self.lines, "}"]
        head = [*list_headers(lines), "", f"// {comment(str(plan))}"]
        made = CudaKernel(
            self.name,
            "\n".join([*head, *lines]) + "\n",
            plan.grid,
            kernel.block,
            self.shared_bytes,
            0,
            plan.blocks_per_sm,
            barrier_words=words,
        )
        literals = tuple(value for _, value in constants)
        return TurnsText(made, states, literals, self.memory_bytes)

    # ---- where things are --------------------------------------------------------------------------------------------

    def type(self, state: int) -> ArrayType:
        return self.loop.types[state]

    def point_to_operand(self, state: int) -> Pointer:
        fixed = isinstance(self.loop.roles[state], Invariant)
        return Pointer(f"const {STORAGE[self.type(state).dtype]}", f"state_{state}", fixed)

    @property
    def block_bytes(self) -> int:
        """Scratch of a block; of all blocks that share the rows, where they do not divide them."""
        if self.turns.blocks == 1:
            return self.scratch_bytes
        return -(-self.scratch_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def memory_bytes(self) -> int:
        """Scratch of all blocks that lies in memory."""
        return 0 if self.plan.on_chip else self.block_bytes * self.turns.blocks

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: that of the turn's kernel, and the scratch that lies there behind it."""
        if not self.plan.on_chip:
            return self.kernel.shared_bytes
        return _align(self.kernel.shared_bytes) + self.scratch_bytes

    def own_size(self, state: int) -> int:
        """Elements of a part of the state that a block has."""
        return self.type(state).size // math.prod(n.blocks for n in self.list_levels(state))

    def own_type(self, state: int) -> ArrayType:
        return ArrayType(self.type(state).dtype, (self.own_size(state),))

    def list_levels(self, state: int) -> list[Level]:
        """The dimensions of rows that a part of the state has."""
        return [level for level in self.turns.levels if state in level.split]

    def find_offset(self, levels: Sequence[Level], elements: int) -> str:
        """Where a block's rows begin in an array of these dimensions."""
        terms = []
        for level in levels:
            elements //= level.blocks
            terms.append(f"{self.find_place(level)} * {elements}ll")
        return " + ".join(terms)

    def find_place(self, level: Level) -> str:
        """The number of a block along a dimension of rows."""
        # Two dimensions may be equal in all that is known of them, so that index() could find the other one.
        at = next(n for n, other in enumerate(self.turns.levels) if other is level)
        inner = math.prod(other.blocks for other in self.turns.levels[at + 1 :])
        return f"(blockIdx.x / {inner} % {level.blocks})"

    def writes(self, state: int) -> str:
        """Which blocks write a part of the result: what has no rows each computes for itself.  Empty: all do."""
        others = [level for level in self.turns.levels if state not in level.split]
        return " && ".join(f"{self.find_place(level)} == 0" for level in others)

    def operand(self, state: int) -> str:
        self.operands[state] = None
        return f"state_{state}"

    def own_operand(self, state: int) -> str:
        """Where a block's rows of a state begin."""
        return self.add_rows(self.operand(state), state)

    def own_result(self, state: int) -> str:
        return self.add_rows(f"result_{state}", state)

    def add_rows(self, name: str, state: int) -> str:
        offset = self.find_offset(self.list_levels(state), self.type(state).size)
        return f"{name} + {offset}" if offset else name

    def place_on_chip(self) -> Iterator[str]:
        """The shared memory of a block, the scratch behind what the turn's kernel has there."""
        if self.shared_bytes:
            yield f"{ARENA}({self.shared_bytes});"
        if self.scratch_bytes:
            first = _align(self.kernel.shared_bytes)
            yield f"ASTITCH_SHARED(unsigned char, own_bytes, {first}, {self.scratch_bytes});"
            yield "unsigned char* const scratch = own_bytes;"

    def place_rows(self) -> Iterator[str]:
        if self.turns.blocks > 1 and self.memory_bytes:
            yield f"  scratch += blockIdx.x * {self.block_bytes}ll;"

    @property
    def first_thread(self) -> str:
        """The number of a thread among those that share the rows."""
        if self.kernel.grid == 1:
            return "threadIdx.x"
        return f"blockIdx.x * {self.kernel.block}ll + threadIdx.x"

    @property
    def threads(self) -> int:
        return self.kernel.grid * self.kernel.block

    def list_constants(self) -> list[tuple[k.Parameter, Literal]]:
        """The arrays of the turn that a kernel reads from memory."""
        found = []
        for parameter in self.kernel.arguments:
            attrs = self.graph[parameter.source.partition("#")[0]].attrs
            if isinstance(attrs, ConstantAttrs):
                found.append((parameter, attrs.value))
        return found

    def take_scratch(self, bytes_: int) -> int:
        """Room in the scratch; where it begins."""
        offset = _align(self.scratch_bytes)
        self.scratch_bytes = offset + bytes_
        return offset

    def source_of(self, output: str) -> str:
        return storage_name(self.graph, output)

    # ---- before the turns --------------------------------------------------------------------------------------------

    def choose_places(self) -> None:
        """Which values have two places, and which lie in a stack or are copied."""
        self.copies: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        self.owners: dict[str, int] = {}
        self.stacks: dict[str, int] = {}
        self.stacked: dict[int, str] = {}
        carried = {self.source_of(output) for output in self.made.values()}
        for state, output in self.slices.items():
            source = self.source_of(output)
            # What a turn reads again has two places where another block writes the slice.
            apart = bool(self.writes(state)) and source in carried
            if source in self.written and source not in self.stacks and not apart:
                self.stacks[source] = state
            else:
                self.stacked[state] = source
        for state, output in self.made.items():
            source = self.source_of(output)
            if source not in self.written:
                self.copies[state] = source
                self.keys[state] = f"copy {state}"
                continue
            self.keys[state] = source
            if source not in self.stacks:  # else the next turn reads the slice
                self.owners.setdefault(source, state)
        self.owners |= {self.keys[state]: state for state in self.copies}
        self.numbers = {key: number for number, key in enumerate(self.owners)}

    def begin(self) -> None:
        """The two places of each value, and the state that the first turn reads."""
        for number, state in enumerate(self.owners.values()):
            type_ = self.own_type(state)
            kind = STORAGE[type_.dtype]
            used = state in self.plan.used and not self.writes(state)
            own = self.own_result(state) if used else self.spare(type_)
            other = self.spare(type_)
            if self.turns.counted and self.loop.trips % 2 == 0:
                own, other = other, own
            self.out(1, f"{kind}* even_{number} = {own};")
            self.out(1, f"{kind}* odd_{number} = {other};")
        for state in self.turns.carried:
            kind = STORAGE[self.type(state).dtype]
            start = self.find_start(state)
            self.write_start(state)
            self.out(1, f"const {kind}* now_{state} = {start or self.own_operand(state)};")
        if any(map(self.find_start, self.turns.carried)):
            self.out(1, f"{self.meet};  // the first turn reads what the state starts with")
        self.unwritten = {
            state: self.spare(self.graph[output].array)
            for state, output in self.slices.items()
            if self.writes(state)
        }
        if self.turns.asks:
            truth = ArrayType(DType.PRED, ())
            self.asked = self.spare(truth), self.spare(truth)

    def find_start(self, state: int) -> str:
        """Where a state that starts as one number is written before the first turn; else nowhere."""
        key = self.keys[state]
        own = self.owners.get(key) == state
        return f"odd_{self.numbers[key]}" if own and state in self.loop.starts else ""

    def write_start(self, state: int) -> None:
        """What a state starts with, in the place that the first turn reads: no array is needed for it."""
        if where := self.find_start(state):
            value = render_number(self.loop.starts[state])
            kind = STORAGE[self.type(state).dtype]
            loop = self.loop_over(self.own_size(state))
            self.out(1, f"{loop} {where}[i] = store_as<{kind}>({value});")

    def loop_over(self, elements: int) -> str:
        """The head of a loop in which the threads that share a state share its elements i."""
        return f"for (long long i = {self.first_thread}; i < {elements}; i += {self.threads})"

    @property
    def meet(self) -> str:
        """All threads that share a state have written it."""
        if self.kernel.grid == 1:
            return "__syncthreads()"
        return f"ASTITCH_{'CLUSTER' if self.clusters else 'GLOBAL'}_BARRIER(barrier)"

    @property
    def clusters(self) -> bool:
        """Are the blocks a cluster?  CuPy launches them as a grid whose blocks are resident."""
        return self.plan.cluster and self.abi.own_words

    def spare(self, type_: ArrayType) -> str:
        offset = self.take_scratch(type_.bytes)
        return f"reinterpret_cast<{STORAGE[type_.dtype]}*>(scratch + {offset})"

    # ---- a turn ------------------------------------------------------------------------------------------------------

    def turn(self, body: Sequence[str]) -> None:
        self.out(1, "long long turn = 0;")
        self.out(1, "#pragma unroll 1")
        limit = f"turn < {self.loop.trips}" if self.turns.counted else ""
        self.out(1, f"for (; {limit}; ++turn) {{")
        if self.turns.condition is not None:
            self.ask(self.turns.condition)
        for line in self.point():
            self.out(2, line)
        self.out(2, "{")
        for line in body:
            self.out(3, line)
        self.out(2, "}")
        self.copy()
        self.out(2, f"{self.meet};  // {TOGETHER}")
        if self.turns.asks:
            self.out(2, "if (!*asked) break;")
        for state in self.turns.carried:
            key = self.keys[state]
            made = self.slice_of(self.stacks[key]) if key in self.stacks else self.find_new(key)
            self.out(2, f"now_{state} = {made};")
        self.out(1, "}")

    def find_new(self, key: str) -> str:
        """Of the two places of a value, the one that the turn writes."""
        number = self.numbers[key]
        return f"turn % 2 ? odd_{number} : even_{number}"

    def ask(self, condition: Graph) -> None:
        """Ends the loop where single numbers of the state say so."""
        names: dict[str, str] = {}
        for number, parameter in enumerate(condition.parameters):
            if condition.users[parameter] or parameter in condition.outputs:
                dtype = condition[parameter].dtype
                kind = compute_type(dtype)
                names[parameter] = f"asked_{number}"
                self.out(2, f"const {kind} asked_{number} = {self.read_single(number, kind)};")
        for node in condition:
            if node.is_parameter:
                continue
            if isinstance(node.attrs, ConstantAttrs):
                value = node.attrs.value
                names[node.name] = render_number(Literal(value.dtype, (), value.data))
            elif OPS[node.op].keeps_order:
                names[node.name] = names[node.operands[0]]
            else:
                dtypes = tuple(condition[o].dtype for o in node.operands)
                operands = tuple(k.Name(names[o]) for o in node.operands)
                text = render_value(
                    node.dtype, k.Call(node.op, node.dtype, operands, dtypes, node.attrs)
                )
                names[node.name] = f"asked_v{len(names)}"
                self.out(2, f"const {compute_type(node.dtype)} {names[node.name]} = {text};")
        self.out(2, f"if (!{names[condition.outputs[0]]}) break;")

    def read_single(self, state: int, kind: str) -> str:
        if state in self.turns.counters:
            return self.count(state)
        if isinstance(self.loop.roles[state], Invariant):
            return f"load_as<{kind}>(*{self.operand(state)})"
        return f"load_as<{kind}>(*now_{state})"

    def count(self, state: int) -> str:
        """A counter in a turn."""
        return _render_affine(self.turns.counters[state], self.type(state).dtype, "turn")

    def point(self) -> Iterator[str]:
        """The parameters of the turn's kernel."""
        asked = self.source_of(self.graph.outputs[-1]) if self.turns.asks else ""
        for parameter in self.kernel.arguments:
            kind, name, source = STORAGE[parameter.dtype], parameter.name, parameter.source
            if first := self.find_first_row(source, kind):
                yield f"const {kind} {name}_row[1] = {{{first}}};"
                yield f"const {kind}* const {name} = {name}_row;"
            elif source in self.turns.slices:
                yield f"const {kind}* const {name} = {self.read_slice(source)};"
            elif source in self.states:
                state = self.states[source]
                if state in self.turns.counters:
                    yield f"const {kind} count_{state}[1] = {{{self.count(state)}}};"
                    yield f"const {kind}* const {name} = count_{state};"
                elif isinstance(self.loop.roles[state], Invariant):
                    yield f"const {kind}* const {name} = {self.own_operand(state)};"
                else:
                    yield f"const {kind}* const {name} = now_{state};"
            elif source in self.owners:
                yield f"{kind}* const {name} = {self.find_new(source)};"
            elif source in self.stacks:
                yield f"{kind}* const {name} = {self.slice_of(self.stacks[source])};"
            elif source == asked:
                even, odd = self.asked
                yield f"{kind}* const {name} = turn % 2 ? {odd} : {even};"
                yield f"{kind}* const asked = {name};"

    def find_first_row(self, source: str, kind: str) -> str:
        """The number of a block's first row, where a parameter of the turn is that; else nothing."""
        level = next((n for n in self.turns.levels if n.first_row == source), None)
        return f"({kind})({self.find_place(level)} * {level.rows})" if level else ""

    def slice_of(self, state: int) -> str:
        """Where a turn writes its slice of a stack: somewhere else, where another block writes it."""
        role = self.loop.roles[state]
        assert isinstance(role, Stack)
        where = f"result_{state} + {self.find_slice(state, role.place, self.list_levels(state))}"
        test = self.writes(state)
        return f"{test} ? {where} : {self.unwritten[state]}" if test else where

    def read_slice(self, name: str) -> str:
        """Where a turn reads its slice of an invariant."""
        state, place = self.turns.slices[name]
        levels = [level for level in self.turns.levels if name in level.slices]
        at = self.find_slice(state, place, levels)
        return f"{self.operand(state)} + {at}"

    def find_slice(self, state: int, place: Place, levels: Sequence[Level]) -> str:
        """The first element of a slice, or of a block's rows in it."""
        type_ = self.type(state)
        elements = type_.size // type_.shape[place.dimension]
        at = f"({place.index.scale} * turn + {place.index.offset})"
        if not self.turns.counted:
            at = f"hlo_clamp(0ll, {at}, {type_.shape[place.dimension] - 1}ll)"
        at += f" * {elements}"
        offset = self.find_offset(levels, elements)
        return f"{at} + {offset}" if offset else at

    def copy(self) -> None:
        """What a turn hands on as it was, or begins anew."""
        for state, source in self.copies.items():
            value = self.read_old(state, source)
            self.out(2, f"{self.loop_over(self.own_size(state))} {{")
            self.out(3, f"({self.find_new(self.keys[state])})[i] = {value};")
            self.out(2, "}")
        if any(source in self.written for source in self.stacked.values()):
            self.out(2, f"{self.meet};  // stacks have what others have got")
        for state, source in self.stacked.items():
            if source in self.owners:
                value = f"({self.find_new(source)})[i]"
            elif source in self.stacks:
                value = f"({self.slice_of(self.stacks[source])})[i]"
            else:
                value = self.read_old(state, source)
            role = self.loop.roles[state]
            assert isinstance(role, Stack)
            size = self.own_size(state) // self.type(state).shape[role.place.dimension]
            self.out(2, f"{self.loop_over(size)} ({self.slice_of(state)})[i] = {value};")

    def read_old(self, state: int, source: str) -> str:
        """Element i of a value that no kernel computes."""
        kind = STORAGE[self.type(state).dtype]
        if source in self.states:
            other = self.states[source]
            if other in self.turns.counters:
                return f"({kind}){self.count(other)}"
            fixed = isinstance(self.loop.roles[other], Invariant)
            return f"({self.own_operand(other) if fixed else f'now_{other}'})[i]"
        if source in self.turns.slices:
            return f"({self.read_slice(source)})[i]"
        if first := self.find_first_row(source, kind):
            return first
        value = find_repeated(self.graph, source)
        assert value is not None
        return f"store_as<{kind}>({render_number(value)})"

    # ---- after the turns ---------------------------------------------------------------------------------------------

    def end(self) -> None:
        """The results, where they are not there yet."""
        for state in self.plan.used:
            if state in self.turns.counters:
                value = _render_affine(self.turns.counters[state], self.type(state).dtype, "turn")
                self.out(1, f"if (blockIdx.x == 0 && threadIdx.x == 0) *result_{state} = {value};")
            elif state in self.turns.carried:
                test = self.writes(state)
                alone = f" && {test}" if test else ""
                self.out(1, f"if (now_{state} != {self.own_result(state)}{alone}) {{")
                loop = self.loop_over(self.own_size(state))
                self.out(2, f"{loop} ({self.own_result(state)})[i] = now_{state}[i];")
                self.out(1, "}")


def _align(bytes_: int) -> int:
    """Where an access of the widest type may begin."""
    return -(-bytes_ // ACCESS_BYTES) * ACCESS_BYTES


def _as_only_block(line: str) -> str:
    """A line of a kernel of one block, which others may stand beside."""
    return line.replace("blockIdx.x", "0").replace("gridDim.x", "1")


def _render_affine(value: Affine, dtype: DType, turn: str) -> str:
    return f"({STORAGE[dtype]})({turn} * {value.scale}ll + {value.offset}ll)"


def find_repeated(graph: Graph, name: str) -> Literal | None:
    """The number that a value repeats; None where it is no such value."""
    node = graph[stored_value(graph, name)]
    while OPS[node.op].is_broadcast or OPS[node.op].keeps_order:
        node = graph[node.operands[0]]
    if not isinstance(node.attrs, ConstantAttrs) or is_varied(node.attrs.value):
        return None
    values = node.attrs.value.numpy().reshape(-1)
    return Literal.of(values[:1].reshape(()).copy()) if node.array.size else None
