"""Kernel -> CUDA text.  Decides nothing: one function for each kind of statement, printed.

Names, metadata and strings from the HLO reach the text only through `comment` and the identifiers of declarations.py.
So nothing in a module can leave its comment or its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from astitch.graph import index as ix
from astitch.graph.ir import ConstantAttrs, DType, Graph
from astitch.kernel import fold
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import (
    F8,
    STORAGE,
    comment,
    compute_type,
    render,
    render_form,
    render_guards,
    render_number,
    render_store,
    render_value,
)
from astitch.kernel.entry import CUPY, Entry, LaunchAbi, Pointer, render_entry
from astitch.kernel.visit_statements import list_statements

SCALARS_TOGETHER = 32
"""Single elements that a thread may load before it needs the first: half of the registers of a crowded SM's threads."""

COMPLEX_TYPE = re.compile(rf"\b({STORAGE[DType.C64]}|{STORAGE[DType.C128]})\b")
"""What a kernel that computes with complex numbers declares variables or pointers by."""

MANY_SECTIONS = 4
"""Sections of different blocks that are not worth a search."""


def indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


class _Printer:
    def __init__(self, kernel: k.Kernel, abi: LaunchAbi):
        self.kernel, self.abi = kernel, abi
        self.slot_names = frozenset(slot.name for slot in kernel.slots)
        self.integer = "long long" if kernel.wide_index else "int"
        self.blocks: range | None = None  # of the section that is printed, see own_blocks
        self.entered = False  # do only blocks with a task come by what is printed?
        self.folds = False  # does `tasks` stand for the number of tasks?

    def block(self, body: Sequence[k.Statement]) -> Iterator[str]:
        scalars = 0
        for statement in body:
            if isinstance(statement, k.Load) and not statement.position.terms:
                if scalars and scalars % SCALARS_TOGETHER == 0:
                    yield "part_loads();"
                scalars += 1
            yield from self.statement(statement)

    def statement(self, statement: k.Statement) -> Iterator[str]:
        return EMITTERS[type(statement)](self, statement)

    def inner(self, body: Sequence[k.Statement]) -> Iterator[str]:
        """What stands between braces."""
        return indent(self.block(body))

    def own_blocks(self, statement: k.Statement) -> range | None:
        """The blocks that have a task of a section, each one; None where others have something to do there too."""
        if not isinstance(statement, k.Section) or not statement.body:
            return None
        loop = statement.body[-1]
        if not isinstance(loop, k.TaskLoop) or not loop.once:
            return None
        end = statement.offset + loop.tasks
        return range(statement.offset, end) if end <= self.kernel.grid else None

    def taking_part(self, tasks: int) -> str:
        """What a block with a task of the section satisfies."""
        if self.entered:
            return ""
        if self.blocks is None:
            return f"if (first < {self.tasks(tasks)}) "
        tests = ["first >= 0"] if self.blocks.start else []
        tests += [f"first < {tasks}"] if self.blocks.stop < self.kernel.grid else []
        return f"if ({' && '.join(tests)}) " if tests else ""

    def body(self) -> Iterator[str]:
        """The sections of the kernel, those that are equal printed once where that makes a long kernel shorter."""
        body = self.kernel.body
        if not fold.is_long(self.kernel):
            yield from self.sections(body)
            return
        kinds = {p.name: _point_to(p).kind for p in self.kernel.parameters}
        reader = fold.Reader(self.kernel, kinds)
        unfolded: list[k.Statement] = []  # what comes next, section by section
        for part in fold.find_stretches(self.kernel):
            if isinstance(part, k.Statement):
                unfolded.append(part)
                continue
            texts = [reader.read(s, self.shared_text(s)) for s in part.sections]
            groups = fold.group_equal(texts)
            if fold.count_saved(groups) < fold.LEAST_SAVED:
                unfolded += part.statements
                continue
            between = [k.Barrier("block", fold.TAKEN_OVER)] if part.parted else []
            # The first to touch shared memory is perhaps another than in the order before.
            if unfolded and isinstance(unfolded[-1], k.Section):
                unfolded += between
            yield from self.sections(unfolded)
            yield from self.stretch(groups, kinds, parted=part.parted)
            unfolded = list(between)
        yield from self.sections(unfolded)

    def stretch(
        self, groups: Sequence[fold.Equal], kinds: Mapping[str, str], *, parted: bool
    ) -> Iterator[str]:
        """Sections by groups of equal ones.  parted: two of them need a barrier between them."""
        single = [group for group in groups if fold.takes_one(group.first.section)]
        if all(len(group.texts) == 1 for group in single):
            single = []
        barrier = k.Barrier("block", fold.TAKEN_OVER)
        begun = False
        for group in groups:
            if group in single and group is not single[0]:
                continue
            if parted and begun:
                yield from self.statement(barrier)
            begun = True
            grid = self.kernel.grid
            if group in single:
                yield from fold.render_line(single, kinds, grid, parted=parted)
            elif len(group.texts) == 1:
                yield from self.section(group.first.section)
            else:
                yield from fold.render_turns(group, kinds, parted=parted)

    def shared_text(self, section: k.Section) -> Iterator[str]:
        """A section for any first task, any number of tasks and any blocks that come by, between braces."""
        self.folds, self.entered, self.blocks = True, fold.takes_one(section), None
        try:
            yield f"{{  // {comment(section.title)}"
            yield from indent(self.threads(section))
            yield from self.inner(section.body)
            yield "}"
        finally:
            self.folds = self.entered = False

    def tasks(self, count: int) -> str:
        """The number of tasks of the section that is printed."""
        return "tasks" if self.folds else f"{count}"

    def sections(self, body: Sequence[k.Statement]) -> Iterator[str]:
        """Many sections with blocks of their own are found by halves: a block that tested the sections one after the
        other would be late.

        No block has shared memory of two of them to part by a barrier; but of one of them, and of what came before
        them all, so that a barrier between them goes in front.
        """
        run: list[k.Statement] = []
        within: list[k.Statement] = []  # barriers between sections of the run
        behind: list[k.Statement] = []  # and after the last
        stop, parted = 0, True  # does a barrier, or nothing at all, come before the run?
        for statement in body:
            blocks = self.own_blocks(statement)
            if run and isinstance(statement, k.Barrier) and statement.level == "block":
                behind.append(statement)
                continue
            if run and (blocks is None or blocks.start < stop):
                yield from self.block(within[:1] if not parted else ())
                yield from self.halves(run)
                yield from self.block(behind)
                run, within, parted = [], [], bool(behind)
            else:
                within += behind
            behind = []
            if blocks is None:
                yield from self.statement(statement)
                if not isinstance(statement, k.Common):  # which touches no shared memory
                    parted = isinstance(statement, k.Barrier)
            else:
                run.append(statement)
                stop = blocks.stop
        yield from self.block(within[:1] if not parted else ())
        yield from self.halves(run)
        yield from self.block(behind)

    def halves(self, run: Sequence[k.Statement]) -> Iterator[str]:
        if len(run) < MANY_SECTIONS:
            yield from self.block(run)
            return
        middle = len(run) // 2
        later = run[middle]
        assert isinstance(later, k.Section)
        yield f"if (blockIdx.x < {later.offset}) {{"
        yield from indent(self.halves(run[:middle]))
        yield "} else {"
        yield from indent(self.halves(run[middle:]))
        yield "}"

    def section(self, section: k.Section) -> Iterator[str]:
        yield f"{{  // loop {section.number}: {comment(section.title)}"
        yield from indent(self.places(section))
        self.blocks = self.own_blocks(section)
        *before, last = section.body or (None,)
        test = self.taking_part(last.tasks) if isinstance(last, k.TaskLoop) and last.once else ""
        if test and before and self.blocks:
            # What comes before the loop is for its own blocks, too: a power takes as long as a task.
            self.entered = True
            yield f"  {test}{{"
            yield from indent(self.inner(section.body))
            yield "  }"
            self.entered = False
        else:
            yield from self.inner(section.body)
        yield "}"

    def threads(self, section: k.Section) -> Iterator[str]:
        """Where a thread stands in the block."""
        yield "const int thread = threadIdx.x;"
        rows, cols, outer = section.row_threads, section.col_threads, section.outer_threads
        places = {"tx": (cols, 1), "ty": (rows, cols), "to": (outer, rows * cols)}
        if section.packed_inside:
            places = {"tx": (cols, 1), "to": (outer, cols), "ty": (rows, outer * cols)}
        for name, (threads, stride) in places.items():
            yield f"const int {name} = {self.place(threads, stride)};"

    def places(self, section: k.Section) -> Iterator[str]:
        """Where a thread stands in the block, and the block's first task."""
        yield from self.threads(section)
        if not section.offset:
            yield "const int first = blockIdx.x;"
        elif self.own_blocks(section):
            yield f"const int first = int(blockIdx.x) - {section.offset};"
        else:
            later = f"blockIdx.x < {section.offset} ? gridDim.x : 0"
            yield f"const int first = blockIdx.x - {section.offset} + ({later});"

    def place(self, threads: int, stride: int) -> str:
        """The place of a thread among `threads`, a power of two, that are `stride` apart; computed on an unsigned
        number."""
        if threads == 1:
            return "0"
        major = stride * threads == self.kernel.block
        text = "threadIdx.x" if stride == 1 else f"threadIdx.x / {stride}"
        return text if major else f"{text} % {threads}"

    # -- declarations --------------------------------------------------------------------------------------------

    def reducer(self, reducer: k.Reducer) -> Iterator[str]:
        fields = list(enumerate(reducer.fields))
        yield f"struct Reduce{reducer.number} {{"
        commutative = "true" if reducer.commutative else "false"
        yield f"  static constexpr bool commutative = {commutative};"
        joint = f"JOINT_{reducer.joint.upper() or 'NONE'}"
        yield f"  static constexpr Joint joint = {joint};"
        members = " ".join(f"{compute_type(d)} f{i};" for i, d in fields)
        yield f"  struct State {{ {members} }};"
        values = ", ".join(render_number(v) for v in reducer.identity)
        yield f"  static __device__ __forceinline__ State identity() {{ return State{{{values}}}; }}"
        yield "  static __device__ __forceinline__ State combine(const State a, const State b) {"
        yield from self.region(reducer)
        yield "  }"
        if self.kernel.block_groups:
            yield from self.exchanged_fields(reducer)
        taken = ", ".join(f"value_of_lane(s.f{i}, lane)" for i, _ in fields)
        yield "  static __device__ __forceinline__ State take(const State s, int lane) {"
        yield f"    return State{{{taken}}};"
        yield "  }"
        shuffled = ", ".join(f"shuffle_value(s.f{i}, mask)" for i, _ in fields)
        yield "  static __device__ __forceinline__ State shuffle(const State s, int mask) {"
        yield f"    return State{{{shuffled}}};"
        yield "  }"
        yield "};"

    @staticmethod
    def exchanged_fields(reducer: k.Reducer) -> Iterator[str]:
        """A state as tagged words and back."""
        kinds = [compute_type(d) for d in reducer.fields]
        yield f"  static constexpr int payload = {reducer.payload}, words = {reducer.words};"
        yield "  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {"
        yield "    unsigned words[payload], *next = words;"
        for number, _ in enumerate(kinds):
            yield f"    words_of_field(next, s.f{number});"
        yield "    publish_words(to, words, tag);"
        yield "  }"
        yield "  static __device__ __forceinline__ State state_of(const unsigned* words) {"
        for number, kind in enumerate(kinds):
            yield f"    const {kind} f{number} = field_of_words<{kind}>(words);"
        names = ", ".join(f"f{number}" for number, _ in enumerate(kinds))
        yield f"    return State{{{names}}};"
        yield "  }"

    def region(self, reducer: k.Reducer) -> Iterator[str]:
        if reducer.joint:
            yield f"    return join_{reducer.joint}(a, b);"
            return
        region: Graph = reducer.region
        count = len(reducer.fields)
        names: dict[str, str] = {}
        for number, parameter in enumerate(region.parameters):
            names[parameter] = f"a.f{number}" if number < count else f"b.f{number - count}"
        for node in region:
            if node.is_parameter:
                continue
            if isinstance(node.attrs, ConstantAttrs):
                names[node.name] = render_number(node.attrs.value)
                continue
            dtypes = tuple(region[o].dtype for o in node.operands)
            operands = tuple(k.Name(names[o]) for o in node.operands)
            call = k.Call(node.op, node.dtype, operands, dtypes, node.attrs)
            # A wider accumulator than the region's type (sums of f16 and bf16) is not rounded at every step.
            widened = reducer.fields[0] is not region[region.outputs[0]].dtype
            text = render(call) if widened else render_value(node.dtype, call)
            names[node.name] = f"v{len(names)}"
            yield f"    const {compute_type(node.dtype)} {names[node.name]} = {text};"
        yield f"    return State{{{', '.join(names[o] for o in region.outputs)}}};"

    def entry(self) -> Entry:
        """The name and the pointers of the kernel."""
        kernel = self.kernel
        pointers = [_point_to(parameter) for parameter in kernel.arguments]
        if kernel.scratch:
            pointers.append(Pointer("unsigned char", "scratch"))
        bounds = ", ".join(str(n) for n in (kernel.block, kernel.blocks_per_sm) if n)
        words = kernel.barrier_words if kernel.cooperative else 0
        return Entry(kernel.name, bounds, tuple(pointers), words, many=kernel.pointer_table)

    def declared(self) -> Iterator[str]:
        """What stands at the top of the entry: scratch and shared memory by their names."""
        kernel = self.kernel
        named = {p.source: p for p in kernel.parameters}
        for array in kernel.scratch:
            kind, name = STORAGE[named[array.source].dtype], named[array.source].name
            yield f"{kind}* const {name} = reinterpret_cast<{kind}*>(scratch + {array.offset});"
        for p in (p for p in kernel.parameters if p.whole):
            yield f"{STORAGE[p.dtype]}* const {p.name} = {named[p.whole].name} + {p.start};"
        yield f"assume_threads<{kernel.block}>();"
        if kernel.shared_bytes:
            yield self.abi.declare_arena(kernel.shared_bytes, kernel.waiting_blocks)
        for slot in kernel.slots:
            kind = (
                f"Reduce{slot.reducer}::State"
                if slot.reducer is not None
                else STORAGE[slot.dtype or DType.F32]
            )
            yield f"ASTITCH_SHARED({kind}, {slot.name}, {slot.offset}, {slot.count});"

    def text(self) -> Iterator[str]:
        kernel = self.kernel
        yield f"// {kernel.name}: grid {kernel.grid} x {kernel.block} threads, {kernel.shared_bytes} B shared"
        for source in kernel.sources[:8]:
            yield f"//   {comment(source)}"
        if len(kernel.sources) > 8:
            yield f"//   and {len(kernel.sources) - 8} more"
        for reducer in kernel.reducers:
            yield from self.reducer(reducer)
        yield from render_entry(self.entry(), self.abi)
        yield from indent(self.declared())
        if kernel.block_groups:
            yield "  const unsigned tag = astitch_launch_tag(barrier);"
            yield "  unsigned long long* const exchange = astitch_tagged_words(barrier);"
        yield from indent(self.body())
        if kernel.block_groups:
            yield "  astitch_end_launch(barrier);"
        yield "}"


# ---- elements ---------------------------------------------------------------------------------------------------


def _emit_index(printer: _Printer, index: k.Index) -> Iterator[str]:
    yield f"const {printer.integer} {index.name} = {render_form(index.form)};"


def _emit_choose_index(printer: _Printer, choice: k.ChooseIndex) -> Iterator[str]:
    *tests, (_, last) = choice.cases
    chosen = [f"{render_guards(g)} ? {render_form(form)} : " for g, form in tests]
    yield f"const {printer.integer} {choice.name} = {''.join(chosen)}{render_form(last)};"


def _emit_start(printer: _Printer, start: k.Start) -> Iterator[str]:
    # Unsigned starts are never negative, but may exceed what an int holds.
    size = "int" if start.dtype.bytes <= 4 and start.limit < 1 << 31 else "long long"
    kind = f"unsigned {size}" if start.dtype.is_unsigned else size
    clamped = f"hlo_clamp(({kind})0, ({kind}){render(start.expr)}, ({kind}){start.limit})"
    yield f"const {printer.integer} {start.name} = ({printer.integer}){clamped};"


def _emit_value(printer: _Printer, value: k.Value) -> Iterator[str]:
    kind = compute_type(value.dtype)
    yield f"const {kind} {value.name} = {render_value(value.dtype, value.expr)};"


def _emit_load(printer: _Printer, load: k.Load) -> Iterator[str]:
    kind = compute_type(load.dtype)
    element = f"{load.array}[{render_form(load.position)}]"
    yield f"const {kind} {load.name} = load_as<{kind}>({element});"


def _emit_load_vector(printer: _Printer, load: k.LoadVector) -> Iterator[str]:
    vector = _vector_type(load.dtype, load.width)
    at = f"{load.array} + ({render_form(load.position)})"
    loaded = f"{load.name} = *reinterpret_cast<const {vector}*>({at});"
    if load.guards:
        yield f"{vector} {load.name}{{}};"
        yield f"if ({render_guards(load.guards)}) {loaded}"
    else:
        yield f"const {vector} {loaded}"


def _vector_type(dtype: DType, width: int) -> str:
    return f"Vec<{STORAGE[dtype]}, {width}>"


def _emit_vector_variable(printer: _Printer, variable: k.VectorVariable) -> Iterator[str]:
    kind = "Lanes" if variable.unrounded or variable.dtype in F8 else "Vec"
    yield f"{kind}<{STORAGE[variable.dtype]}, {variable.width}> {variable.name};"


def _emit_store_lane(printer: _Printer, store: k.StoreLane) -> Iterator[str]:
    unrounded = store.unrounded or store.dtype in F8
    value = render(store.expr) if unrounded else render_store(store.dtype, store.expr)
    yield f"{store.vector}.v[lane] = {value};"


def _emit_store_vector(printer: _Printer, store: k.StoreVector) -> Iterator[str]:
    at = f"{store.array} + ({render_form(store.position)})"
    if store.unrounded or store.dtype in F8:
        yield f"store_lanes({at}, {store.vector});"
    else:
        kind = _vector_type(store.dtype, store.width)
        yield f"*reinterpret_cast<{kind}*>({at}) = {store.vector};"


def _emit_store(printer: _Printer, store: k.Store) -> Iterator[str]:
    element = f"{store.array}[{render_form(store.position)}]"
    yield f"{element} = {render_store(store.dtype, store.expr)};"


def _emit_keep(printer: _Printer, keep: k.Keep) -> Iterator[str]:
    kind = STORAGE[keep.dtype] if keep.raw else compute_type(keep.dtype)
    yield f"{kind} {keep.name}[{keep.count}];"


def _emit_keep_set(printer: _Printer, keep: k.KeepSet) -> Iterator[str]:
    value = render_store(keep.dtype, keep.expr) if keep.raw else render(keep.expr)
    yield f"{keep.name}[{render_form(keep.position)}] = {value};"


# ---- prefetches -------------------------------------------------------------------------------------------------


def _emit_prefetch_registers(printer: _Printer, registers: k.PrefetchRegisters) -> Iterator[str]:
    kind = _vector_type(registers.dtype, registers.width)
    yield f"words_of<{kind}>::type {registers.name}[{registers.count}];"


def _render_shared(step: k.KeepVector | k.Fetch | k.TakeVector, slot: str) -> str:
    """A vector of a shared slot."""
    kind = f"{STORAGE[step.dtype]}, {step.width}"
    return f"shared_vec<{kind}>({slot}, ({render_form(step.at)}) * {step.width})"


def _emit_keep_vector(printer: _Printer, keep: k.KeepVector) -> Iterator[str]:
    if keep.target in printer.slot_names:
        yield f"{_render_shared(keep, keep.target)} = {keep.vector};"
    else:
        yield f"{keep.target}[{render_form(keep.at)}] = to_words({keep.vector});"


def _emit_advance(printer: _Printer, step: k.Advance) -> Iterator[str]:
    yield "#pragma unroll"
    yield f"for (int i = 0; i < {step.count}; ++i) {step.target}[i] = {step.source}[i];"


def _emit_fetch(printer: _Printer, fetch: k.Fetch) -> Iterator[str]:
    source = f"{fetch.array} + ({render_form(fetch.position)})"
    if fetch.target in printer.slot_names:
        yield f"copy_async(&{_render_shared(fetch, fetch.target)}, {source});"
    else:
        words = f"words_of<{_vector_type(fetch.dtype, fetch.width)}>::type"
        loaded = f"*reinterpret_cast<const {words}*>({source})"
        yield f"{fetch.target}[{render_form(fetch.at)}] = {loaded};"


def _emit_copy_wait(printer: _Printer, wait: k.CopyWait) -> Iterator[str]:
    if wait.pending is None:
        yield "copy_commit();"
    yield f"copy_wait<{wait.pending or 0}>();"


def _emit_take_vector(printer: _Printer, take: k.TakeVector) -> Iterator[str]:
    kind = _vector_type(take.dtype, take.width)
    taken = f"from_words<{kind}>({take.source}[{render_form(take.at)}])"
    if take.source in printer.slot_names:
        taken = _render_shared(take, take.source)
    yield f"const {kind} {take.name} = {taken};"


def _emit_prefetch(printer: _Printer, prefetch: k.Prefetch) -> Iterator[str]:
    inside = list_statements(prefetch.body)
    asynchronous = any(isinstance(s, k.Fetch) and s.target in printer.slot_names for s in inside)
    start, distance, buffers = (
        "first" if prefetch.first else "task",
        prefetch.distance,
        prefetch.buffers,
    )
    blocks = "gridDim.x" if distance == 1 else f"{distance} * gridDim.x"
    later = f"{start} + {blocks}" if distance else start
    yield f"if (const {printer.integer} next = {later}; next < {printer.tasks(prefetch.tasks)}) {{"
    yield f"  const {printer.integer} task = next;"
    if asynchronous and prefetch.first:
        yield f"  const int next_turn = {distance};"
    elif asynchronous:
        place = f"turn < {buffers - distance} ? turn + {distance} : turn - {buffers - distance}"
        yield f"  const int next_turn = {place};"
    yield from printer.inner(prefetch.body)
    yield "}"
    if asynchronous:
        yield "copy_commit();"


def _emit_fetch_round(printer: _Printer, fetch: k.FetchRound) -> Iterator[str]:
    variable, count, backward = fetch.variable, fetch.count, fetch.backward
    if fetch.first:
        yield "{"
        yield f"  const int {variable} = {count - 1 if backward else 0};"
    else:
        step = f"{variable} - 1; next >= 0" if backward else f"{variable} + 1; next < {count}"
        yield f"if (const int next = {step}) {{"
        yield f"  const int {variable} = next;"
    yield from printer.inner(fetch.body)
    yield "}"
    yield "copy_commit();"


# ---- reductions -------------------------------------------------------------------------------------------------


def _emit_states(printer: _Printer, states: k.States) -> Iterator[str]:
    name, reducer = states.name, f"Reduce{states.reducer}"
    yield f"{reducer}::State {name}[{states.count}];"
    yield "#pragma unroll"
    yield f"for (int i = 0; i < {states.count}; ++i) {name}[i] = {reducer}::identity();"


_Accumulation = (
    k.Accumulate | k.AccumulateProduct | k.AccumulateElement | k.AccumulateBatch | k.AccumulateState
)


def _render_state(step: _Accumulation) -> str:
    return f"{step.state}[{render_form(step.position)}]"


def _emit_accumulate(printer: _Printer, step: k.Accumulate) -> Iterator[str]:
    at, reducer = _render_state(step), f"Reduce{step.reducer}"
    fields = ", ".join(render(v) for v in step.values)
    yield f"{at} = {reducer}::combine({at}, {reducer}::State{{{fields}}});"


def _emit_accumulate_product(printer: _Printer, step: k.AccumulateProduct) -> Iterator[str]:
    field = f"{_render_state(step)}.f0"
    yield f"{field} = hlo_multiply_add({render(step.a)}, {render(step.b)}, {field});"


def _emit_accumulate_element(printer: _Printer, step: k.AccumulateElement) -> Iterator[str]:
    kind = printer.kernel.reducers[step.reducer].joint
    yield f"add_to_{kind}({_render_state(step)}, {render(step.value)});"


def _emit_batch(printer: _Printer, batch: k.Batch) -> Iterator[str]:
    yield f"{compute_type(batch.dtype)} {batch.name}[{batch.width}];"


def _emit_batch_set(printer: _Printer, step: k.BatchSet) -> Iterator[str]:
    yield f"{step.name}[lane] = {render(step.expr)};"


def _emit_accumulate_batch(printer: _Printer, step: k.AccumulateBatch) -> Iterator[str]:
    kind = printer.kernel.reducers[step.reducer].joint
    yield f"add_batch_to_{kind}({_render_state(step)}, {step.batch});"


def _emit_accumulate_state(printer: _Printer, step: k.AccumulateState) -> Iterator[str]:
    at, reducer = _render_state(step), f"Reduce{step.reducer}"
    fields = ", ".join(
        f"load_as<{compute_type(d)}>({a}[{render_form(step.at)}])"
        for a, d in zip(step.arrays, printer.kernel.reducers[step.reducer].fields, strict=True)
    )
    yield f"{at} = {reducer}::combine({at}, {reducer}::State{{{fields}}});"


def _emit_reduction(printer: _Printer, step: k.ReduceAcross) -> Iterator[str]:
    across = step.stride == 1 and step.threads > 32
    if across:
        yield from _emit_reduction_of_warps(step)
        return
    for part in step.parts:
        reducer = f"Reduce{part.reducer}"
        if not part.slot:
            yield f"reduce_lanes<{reducer}, {step.threads}, {step.stride}>({part.state});"
        else:
            ways = f"{'true' if step.butterfly else 'false'}, {'true' if step.alone else 'false'}"
            sizes = (
                f"{step.threads}, {step.stride}, {printer.kernel.block}, {k.STRIDED_CHUNK}, {ways}"
            )
            yield f"reduce_strided<{reducer}, {sizes}>({part.state}, {part.slot});"


def _emit_reduction_of_warps(step: k.ReduceAcross) -> Iterator[str]:
    """Parts with one slot are reduced together."""
    slots: dict[str, list[k.Part]] = {}
    for part in step.parts:
        slots.setdefault(part.slot, []).append(part)
    way = f"{step.threads}, {'true' if step.butterfly else 'false'}"
    second = []
    for slot, parts in slots.items():
        reducer, states = f"Reduce{parts[0].reducer}", ", ".join(p.state for p in parts)
        if len(parts) == 1:
            yield f"reduce_warps<{reducer}>({states}, {slot});"
            second.append(f"combine_warps<{reducer}, {way}>({states}, {slot});")
        else:
            yield f"reduce_warps_together<{reducer}>({slot}, {states});"
            second.append(f"combine_warps_together<{reducer}, {step.threads}>({slot}, {states});")
    yield "__syncthreads();"
    if step.alone:
        yield f"if (thread < 32) {{ {' '.join(second)} }}"
    else:
        yield from second


def _emit_scan(printer: _Printer, step: k.ScanAcross) -> Iterator[str]:
    yield _render_scan(step)


def _render_scan(step: k.ScanAcross) -> str:
    arguments = ", ".join((step.state, step.slot or "nullptr", step.carry or "no_carry()"))
    sizes = f"{step.steps}, {step.width}, {step.threads}"
    given = step.handover
    backward = "true" if step.backward else "false"
    if given is not None:
        each, _ = given.area.strides
        start = ix.offset(ix.scale(given.element, each), given.area.offset)
        arguments += (
            f", exchange + ({render_form(start)}), {render_form(given.part)}, {given.slot}, tag"
        )
        if step.columns:
            sizes += f", {step.stride}"
        kinds = f"Reduce{step.reducer}, {sizes}, {backward}, {given.area.parts}"
        return f"scan_{'columns' if step.columns else 'row'}_of_team<{kinds}>({arguments});"
    if not step.columns:
        return f"scan_row<Reduce{step.reducer}, {sizes}, {backward}>({arguments});"
    sizes += f", {step.stride}, {backward}"
    return f"scan_columns<Reduce{step.reducer}, {sizes}>({arguments});"


def _emit_sort(printer: _Printer, step: k.SortAcross) -> Iterator[str]:
    sizes = f"{step.steps}, {step.width}, {step.threads}, {k.SORTED_CHUNK}"
    yield f"sort_row<Reduce{step.reducer}, {sizes}>({step.state}, {step.slot or 'nullptr'});"


def _emit_finish(printer: _Printer, step: k.Finish) -> Iterator[str]:
    fields = ", ".join(render(v) for v in step.inits)
    state, reducer = f"{step.state}[i]", f"Reduce{step.reducer}"
    combined = f"{reducer}::combine({reducer}::State{{{fields}}}, {state})"
    yield "#pragma unroll"
    yield f"for (int i = 0; i < {step.count}; ++i) {state} = {combined};"


# ---- block groups
# ------------------------------------------------------------------------------------------------------


def _emit_publish(printer: _Printer, step: k.Publish) -> Iterator[str]:
    each, other = step.area.strides
    word = ix.add(ix.scale(step.element, each), ix.scale(step.part, other))
    to = f"exchange + ({render_form(ix.offset(word, step.area.offset))})"
    yield f"Reduce{step.reducer}::publish({step.state}[{render_form(step.at)}], {to}, tag);"


def _emit_collect(printer: _Printer, step: k.Collect) -> Iterator[str]:
    each, other = step.area.strides
    start = f"exchange + ({render_form(ix.offset(ix.scale(step.element, each), step.area.offset))})"
    arguments = f"{step.state}[{render_form(step.at)}], {start}, {render_form(step.rank)}, tag"
    kinds = f"Reduce{step.reducer}, {step.members}, {step.area.parts}, {other}"
    yield f"collect_parts<{kinds}>({arguments});"


def _emit_meeting(printer: _Printer, meeting: k.Meeting) -> Iterator[str]:
    ago = f", {meeting.delay} tasks ago" if meeting.delay else ""
    warps = max(printer.kernel.block // 32, 1)
    yield f"// parts of {meeting.blocks} blocks{ago}"
    if meeting.packed <= warps:
        yield f"if (const int warp = thread / 32; warp < {meeting.packed}) {{"
    else:
        yield f"for (int warp = thread / 32; warp < {meeting.packed}; warp += {warps}) {{"
    yield "  const int to = warp;"
    yield from printer.inner(meeting.body)
    for total in meeting.totals:
        yield f"  if (thread % 32 == 0) {total.slot}[to] = {total.found}[0];"
    yield "}"
    yield "__syncthreads();"
    for total in meeting.totals:
        yield f"Reduce{total.reducer}::State {total.state}[1] = {{{total.slot}[to]}};"


# ---- nests ------------------------------------------------------------------------------------------------------


def _emit_loop(printer: _Printer, loop: k.Loop) -> Iterator[str]:
    variable, count = loop.variable, loop.count
    if loop.bound is not None:
        end = render_form(loop.bound)
        yield f"#pragma unroll {loop.together}"
        yield (
            f"for (int {variable} = 0, {variable}_end = {end} < {count} ? {end} : {count}; "
            f"{variable} < {variable}_end; ++{variable}) {{"
        )
    elif count == 1:
        yield "{"
        yield f"  const int {variable} = 0;"
    else:
        yield f"#pragma unroll{'' if loop.unroll else f' {loop.together}'}"
        yield f"for (int {variable} = 0; {variable} < {count}; ++{variable}) {{"
    yield from printer.inner(loop.body)
    yield "}"


def _emit_rounds(printer: _Printer, rounds: k.Rounds) -> Iterator[str]:
    variable, count = rounds.variable, rounds.count
    loop = f"int {variable} = 0; {variable} < {count}; ++{variable}"
    if rounds.backward:
        loop = f"int {variable} = {count - 1}; {variable} >= 0; --{variable}"
    yield "#pragma unroll 1"
    yield f"for ({loop}) {{"
    yield from printer.inner(rounds.body)
    yield "}"


def _emit_if(printer: _Printer, statement: k.If) -> Iterator[str]:
    yield f"if ({render_guards(statement.guards)}) {{"
    yield from printer.inner(statement.body)
    yield "}"


def _emit_switch(printer: _Printer, switch: k.Switch) -> Iterator[str]:
    for number, case in enumerate(switch.cases):
        yield _render_case(number, case)
        yield from printer.inner(case.body)
    yield "}"


def _render_case(number: int, case: k.If | k.Branch) -> str:
    """The line in front of a case."""
    head = "" if number == 0 else "} else "
    test = f"if ({render_guards(case.guards)}) " if case.guards else ""
    return f"{head}{test}{{"


def _emit_choose(printer: _Printer, choice: k.Choose) -> Iterator[str]:
    yield f"{compute_type(choice.dtype)} {choice.name};"
    for number, branch in enumerate(choice.branches):
        yield _render_case(number, branch)
        yield from printer.inner(branch.body)
        yield f"  {choice.name} = {render(branch.result)};"
    yield "}"


def _emit_common(printer: _Printer, common: k.Common) -> Iterator[str]:
    return printer.block(common.body)


def _emit_task_loop(printer: _Printer, loop: k.TaskLoop) -> Iterator[str]:
    tasks, buffers, delay = loop.tasks, loop.buffers, loop.delay
    if loop.once:
        yield f"{printer.taking_part(tasks)}{{"
        yield f"  const {printer.integer} task = first;"
    else:
        if buffers:
            yield f"int turn = {buffers - 1};"
        count = printer.tasks(tasks)
        end = f"{count} + {delay} * gridDim.x" if delay else count
        yield f"for ({printer.integer} task = first; task < {end}; task += gridDim.x) {{"
        if buffers:
            yield f"  turn = turn == {buffers - 1} ? 0 : turn + 1;"
    yield from printer.inner(loop.body)
    yield "}"


def _emit_current(printer: _Printer, current: k.Current) -> Iterator[str]:
    yield f"if (task < {printer.tasks(current.tasks)}) {{"
    yield from printer.inner(current.body)
    yield "} else __syncthreads();  // parts what comes before from what comes after, as inside"


def _emit_previous(printer: _Printer, previous: k.Previous) -> Iterator[str]:
    buffers, delay = previous.buffers, previous.delay
    back = f"{delay} * int(gridDim.x)"
    yield f"if (task - {back} >= first) {{"
    yield f"  const {printer.integer} last_task = task - {back};"
    yield f"  const int last_turn = turn < {delay} ? turn + {buffers - delay} : turn - {delay};"
    yield "  {"
    yield f"    const {printer.integer} task = last_task;"
    yield "    const int turn = last_turn;"
    yield from indent(printer.inner(previous.body))
    yield "  }"
    yield "} else __syncthreads();"


def _emit_barrier(printer: _Printer, barrier: k.Barrier) -> Iterator[str]:
    reason = comment(barrier.reason)
    if barrier.level == "global":
        yield f"ASTITCH_GLOBAL_BARRIER(barrier);  // {reason}"
    else:
        yield f"__syncthreads();  // {reason}"


EMITTERS: dict[type[k.Statement], Callable[[_Printer, Any], Iterator[str]]] = {
    k.Index: _emit_index,
    k.ChooseIndex: _emit_choose_index,
    k.Start: _emit_start,
    k.Value: _emit_value,
    k.Load: _emit_load,
    k.LoadVector: _emit_load_vector,
    k.VectorVariable: _emit_vector_variable,
    k.StoreLane: _emit_store_lane,
    k.StoreVector: _emit_store_vector,
    k.Store: _emit_store,
    k.Keep: _emit_keep,
    k.KeepSet: _emit_keep_set,
    k.PrefetchRegisters: _emit_prefetch_registers,
    k.KeepVector: _emit_keep_vector,
    k.Advance: _emit_advance,
    k.Prefetch: _emit_prefetch,
    k.Fetch: _emit_fetch,
    k.CopyWait: _emit_copy_wait,
    k.TakeVector: _emit_take_vector,
    k.FetchRound: _emit_fetch_round,
    k.States: _emit_states,
    k.Accumulate: _emit_accumulate,
    k.AccumulateProduct: _emit_accumulate_product,
    k.AccumulateElement: _emit_accumulate_element,
    k.Batch: _emit_batch,
    k.BatchSet: _emit_batch_set,
    k.AccumulateBatch: _emit_accumulate_batch,
    k.AccumulateState: _emit_accumulate_state,
    k.ReduceAcross: _emit_reduction,
    k.ScanAcross: _emit_scan,
    k.SortAcross: _emit_sort,
    k.Finish: _emit_finish,
    k.Publish: _emit_publish,
    k.Collect: _emit_collect,
    k.Meeting: _emit_meeting,
    k.Loop: _emit_loop,
    k.Rounds: _emit_rounds,
    k.If: _emit_if,
    k.Switch: _emit_switch,
    k.Choose: _emit_choose,
    k.Section: _Printer.section,
    k.Common: _emit_common,
    k.TaskLoop: _emit_task_loop,
    k.Current: _emit_current,
    k.Previous: _emit_previous,
    k.Barrier: _emit_barrier,
}
"""The function that prints a statement, by its class."""


def _point_to(parameter: k.Parameter) -> Pointer:
    kind = STORAGE[parameter.dtype]
    if not parameter.written:
        return Pointer(f"const {kind}", parameter.name, restrict=True)
    # What is written and read again goes through plain pointers: other blocks write it too.
    return Pointer(kind, parameter.name, restrict=not parameter.read)


def emit_cuda(kernel: k.Kernel, abi: LaunchAbi = CUPY) -> str:
    """The translation unit of a kernel under an ABI; equal kernels give equal bytes."""
    lines = [*_Printer(kernel, abi).text()]
    return "\n".join([*list_headers(lines), *lines]) + "\n"


def list_headers(lines: Iterable[str]) -> list[str]:
    """The lines that include what these lines of a kernel need."""
    headers = ['#include "astitch.cuh"']
    if any(COMPLEX_TYPE.search(line) for line in lines):
        headers.append('#include "complex.cuh"')
    return headers


def emit_parts(kernel: k.Kernel) -> tuple[list[str], list[str], list[str]]:
    """The parts of a kernel's text, for an entry of another kind: its reducers, what it declares, its statements."""
    printer = _Printer(kernel, CUPY)
    reducers = [line for reducer in kernel.reducers for line in printer.reducer(reducer)]
    return reducers, [*printer.declared()], [*printer.body()]
