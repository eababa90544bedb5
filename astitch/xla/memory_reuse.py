"""Compilation -> which results of its kernels take over the memory of an argument.

Takes a Compilation and the donated parameters, hands on pairs of parameters by kernel.  kernel/in_place.py proves of
each that the kernel reads before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from astitch.graph.ir import ArrayType, ConditionalAttrs, GetTupleElementAttrs, Graph, Node
from astitch.graph.ops import OPS
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import (
    LEAST_BYTES_AGAIN,
    InPlace,
    find_uses,
    writes_where_it_read,
)
from astitch.program.steps import KernelStep, Step, View
from astitch.search.plan import Plan
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope


def find_in_place(
    compilation: Compilation, donated: Sequence[bool], least_bytes: int = 0
) -> dict[str, list[InPlace]]:
    """The results that take over the memory of donated parameters, or of large temporary arrays that nothing else
    reads; by kernel.

    least_bytes: of such an array; 0: LEAST_BYTES_AGAIN.
    XLA lets a custom call's result share memory only where the call says so; else it copies each result of a donated
    parameter to it afterwards.  Which result goes with which parameter is JAX's rule: the first of the same type.
    """
    into = match_donated(compilation.scopes.graph, donated)
    return _find_in_place(compilation, into, least_bytes)


def find_carried_in_place(
    compilation: Compilation, least_bytes: int = 0
) -> dict[str, list[InPlace]]:
    """The same for the state of a loop, whose body hands on result i where it found parameter i."""
    program = compilation.program
    into: dict[str, str] = {}
    for parameter, output in zip(program.parameters, program.outputs, strict=True):
        if parameter.type == output.type:
            into.setdefault(output.buffer, parameter.buffer)
    return _find_in_place(compilation, into, least_bytes)


def find_temporaries_in_place(
    compilation: Compilation, least_bytes: int = 0
) -> dict[str, list[InPlace]]:
    """The same for a branch of a conditional: its parameters are not its own, large arrays that it computes are."""
    return _find_in_place(compilation, {}, least_bytes)


def match_donated(graph: Graph, donated: Sequence[bool]) -> dict[str, str]:
    """The buffer that a result may take over, by the result's buffer.

    As the graph says, else by JAX's rule.
    """
    into = {
        storage_name(graph, graph.outputs[output]): graph.parameters[parameter]
        for output, parameter in graph.aliases
    }
    taken = set(into.values())
    waiting: dict[ArrayType, list[str]] = {}
    for parameter, given in zip(graph.parameters, donated, strict=True):
        if given and parameter not in taken:
            waiting.setdefault(graph[parameter].array, []).append(parameter)
    for output in graph.outputs:
        name = storage_name(graph, output)
        if name not in into and waiting.get(graph[output].array):
            into[name] = waiting[graph[output].array].pop(0)
    return into


def _find_in_place(
    compilation: Compilation, into: Mapping[str, str], least_bytes: int = 0
) -> dict[str, list[InPlace]]:
    """into: the buffer that a result may take over, by the result's buffer.  least_bytes: see find_in_place."""
    program, graph = compilation.program, compilation.scopes.graph
    last = {v.buffer: number for number, step in enumerate(program.steps) for v in _read_by(step)}
    plans = {plan.kernel.name: plan for plan in compilation.plans}
    found: dict[str, list[InPlace]] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            plan = plans[step.kernel.name]
            final = {v.buffer for v in _read_by(step) if last[v.buffer] == number}
            reads_last = final.__contains__
            pairs = _find_pairs(plan.kernel, graph, plan.scope, into, reads_last, least_bytes)
            if pairs:
                found[plan.kernel.name] = pairs
    return found


def _find_pairs(
    kernel: k.Kernel,
    graph: Graph,
    scope: Scope,
    into: Mapping[str, str],
    reads_last: Callable[[str], bool],
    least_bytes: int = 0,
) -> list[InPlace]:
    """scope: the kernel's.  into: see match_donated.  reads_last: does nobody read what a buffer holds after the
    kernel?  least_bytes: see find_in_place."""
    arguments = kernel.arguments
    numbers = {p.source: i for i, p in enumerate(arguments)}
    written = [i for i in numbers.values() if arguments[i].written]
    # What is written in pieces is read at other places of the memory that it would take over.
    alone = [i for i in written if arguments[i].source not in kernel.wholes]
    candidates: list[InPlace] = []
    for source, number in numbers.items():
        read = numbers.get(into.get(source, "")) if number in alone else None
        if read is None or read in written or not reads_last(into[source]):
            continue
        if _is_alike(storage_type(graph, into[source]), storage_type(graph, source)):
            candidates.append(InPlace(read, number))
    for source, number in numbers.items():
        array = None if number in written else _used_up(graph, scope, source, least_bytes)
        for result in alone if array else ():
            if array and _is_alike(array, storage_type(graph, arguments[result].source)):
                candidates.append(InPlace(number, result))
    names = {arguments[i].name for pair in candidates for i in (pair.read, pair.written)}
    uses = find_uses(kernel.body, names) if candidates else {}
    pairs: list[InPlace] = []
    taken: set[int] = set()  # memory has one heir, and a result one place
    for pair in candidates:
        both = {pair.read, pair.written}
        old, new = arguments[pair.read].name, arguments[pair.written].name
        if not both & taken and writes_where_it_read(old, new, uses):
            pairs.append(pair)
            taken |= both
    return pairs


def _is_alike(one: ArrayType, other: ArrayType) -> bool:
    """May one custom call have both in the same memory?  XLA wants one type there; a reshape changes the shape."""
    return (one.dtype, one.size) == (other.dtype, other.size)


def _used_up(graph: Graph, scope: Scope, buffer: str, least_bytes: int) -> ArrayType | None:
    """The type of a large array that some other step computes and nothing reads behind the scope; None if it is not
    one."""
    name, _, number = buffer.partition("#")
    base = graph[name]
    type_ = storage_type(graph, buffer)
    if base.is_parameter or base.is_constant or (number and not _is_computed(base, int(number))):
        return None
    if type_.bytes < (least_bytes or LEAST_BYTES_AGAIN):
        return None
    pending, readers = [base.name], set[str]()
    if number:
        names = {user for user in graph.users[base.name] if _is_projection(graph[user])}
        readers = {*graph.users[base.name]} - names
        pending = [name for name in names if storage_name(graph, name) == buffer]
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return None
        for user in graph.users[name]:
            if storage_name(graph, user) == buffer:
                pending.append(user)
            else:
                readers.add(user)
    return type_ if _come_before(graph, scope, readers) else None


def _is_computed(node: Node, number: int) -> bool:
    """Is a result of an op of several surely no argument that it hands on?"""
    if OPS[node.op].is_loop:
        body = node.regions[1]
        return body.outputs[number] != body.parameters[number]
    return not isinstance(node.attrs, ConditionalAttrs)


def _is_projection(node: Node) -> bool:
    return isinstance(node.attrs, GetTupleElementAttrs)


def find_plan_in_place(plan: Plan, donated: Sequence[bool]) -> list[InPlace]:
    """The same for the kernel of a plan, before the program is there.

    A reader of the memory must come before the kernel or be in it.  Any other reader keeps the kernel from taking the
    memory over, even if the program would run that reader first.
    """
    graph, scope = plan.arrangement.graph, plan.scope
    into = match_donated(graph, donated)
    return _find_pairs(plan.kernel, graph, scope, into, partial(_reads_last, graph, scope))


def count_copied(plan: Plan, donated: Sequence[bool]) -> int:
    """Bytes of donated parameters that XLA copies in front of the kernel of a plan.

    Such a kernel reads a parameter and writes the result that gets its memory, and cannot write it there.  Readers of
    the parameter that are not in the kernel are taken to run before it, but for those that wait for it.
    """
    graph, scope = plan.arrangement.graph, plan.scope
    numbers = {p.source: i for i, p in enumerate(plan.kernel.arguments)}
    written = {source for source, i in numbers.items() if plan.kernel.arguments[i].written}
    heirs = match_donated(graph, donated)
    into = {source: heirs[source] for source in written & heirs.keys() if heirs[source] in numbers}
    may_be_last = partial(_may_read_last, graph, scope)
    pairs = _find_pairs(plan.kernel, graph, scope, into, may_be_last) if into else []
    in_place = {plan.kernel.arguments[pair.written].source for pair in pairs}
    return sum(storage_type(graph, source).bytes for source in into.keys() - in_place)


def _reads_last(graph: Graph, scope: Scope, parameter: str) -> bool:
    """Do all readers of a parameter belong to a scope or come before it?"""
    return _come_before(graph, scope, _list_readers(graph, parameter))


def _may_read_last(graph: Graph, scope: Scope, parameter: str) -> bool:
    """Does no reader of a parameter wait for the scope?"""
    readers, seen = _list_readers(graph, parameter) - set(scope.members), set[str]()
    pending = list(scope.outputs) if readers else []
    while pending:
        for user in graph.users[pending.pop()]:
            if user in readers:
                return False
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return True


def _list_readers(graph: Graph, parameter: str) -> set[str]:
    """What reads a parameter or a view of it."""
    pending, readers = [parameter], set[str]()
    while pending:
        for user in graph.users[pending.pop()]:
            if storage_name(graph, user) == parameter:
                pending.append(user)
            else:
                readers.add(user)
    return readers


def _come_before(graph: Graph, scope: Scope, readers: set[str]) -> bool:
    """Is each op in a scope, or does the scope wait for it?"""
    waiting, before = readers - set(scope.members), set[str]()
    first = min((graph.order[name] for name in waiting), default=0)
    pending = list(scope.inputs)
    while waiting and pending:
        name = pending.pop()
        if name not in before and graph.order[name] >= first:
            before.add(name)
            waiting.discard(name)
            pending += graph[name].operands
    return not waiting


def _read_by(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [view for i, view in enumerate(step.arguments) if i not in step.written]
    return list(step.operands)
