"""Steps of a program -> Epilogues: kernels behind a product that a library can do before it writes the product.

Takes the steps and what each kernel computes, hands on Epilogues and the reasons against the others.  The idea: sums
are read off the graph; what is done to a sum last is a function of one number, which is known by its values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
)
from astitch.graph.matmul import canonical_dot, choose_product_types
from astitch.graph.ops import OPS, Kind, is_addition
from astitch.graph.reference import eval_node
from astitch.graph.storage import storage_name, stored_value
from astitch.program.steps import Activation, Epilogue, KernelStep, LibraryStep, Step, View
from astitch.stitch_scope import Scope

GELU_TOLERANCE = 1e-6
"""The error allowed, as a share of a number's size: f32 keeps that, and no other GELU comes as close."""

_OPERANDS = (DType.F32, DType.F16, DType.BF16)
_SHORT = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a kernel computes, and the buffers that it reads and writes."""

    name: str
    scope: Scope
    read: tuple[View, ...]
    written: tuple[View, ...]


def find_epilogues(
    graph: Graph,
    scopes: Mapping[str, Scope],
    steps: Sequence[Step],
    stays: Callable[[Scope], bool] = lambda scope: False,
) -> tuple[tuple[Epilogue, ...], tuple[str, ...]]:
    """The kernels that are a product's epilogue, and why other kernels that read products are none.

    scopes: by the names of their kernels.  stays: is a kernel to stay one, whatever a product could take in?
    """
    products = [step.node for step in steps if isinstance(step, LibraryStep)]
    readers = Counter(buffer for step in steps for buffer in {v.buffer for v in _read_by(step)})
    kernels = [
        _Kernel(
            step.kernel.name,
            scopes[step.kernel.name],
            tuple(_read_by(step)),
            tuple(step.arguments[number] for number in sorted(step.written)),
        )
        for step in steps
        if isinstance(step, KernelStep) and step.kernel.name in scopes
    ]
    return _find_epilogues(graph, kernels, products, readers, stays)


def _find_epilogues(
    graph: Graph,
    kernels: Iterable[_Kernel],
    calls: Iterable[Node],
    readers: Counter[str],
    stays: Callable[[Scope], bool],
) -> tuple[tuple[Epilogue, ...], tuple[str, ...]]:
    """calls: products among other ops.  readers: how many steps read a buffer."""
    products = {node.name: node for node in calls if isinstance(node.attrs, DotAttrs)}
    readers = readers + Counter({storage_name(graph, output) for output in graph.outputs})
    found: list[Epilogue] = []
    refused: list[str] = []
    for kernel in kernels:
        read = [products[view.buffer] for view in kernel.read if view.buffer in products]
        reason = ""
        for product in reversed(read):  # where two are added, one is the other's residual
            try:
                epilogue = _Reader(graph, kernel, product).read(readers[product.name])
                if stays(kernel.scope):
                    raise _MoreThanThatError("a directive keeps it a kernel")
                found.append(epilogue)
                break
            except _MoreThanThatError as error:
                reason = str(error)
        else:
            if read:
                refused.append(f"{kernel.name} is no epilogue: {reason}")
    return tuple(found), tuple(refused)


def _read_by(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [view for number, view in enumerate(step.arguments) if number not in step.written]
    return list(step.operands)


class _MoreThanThatError(Exception):
    """The reason why a kernel is no epilogue."""


class _Reader:
    """Reads one kernel as the epilogue of one product.  Everything raises _MoreThanThatError."""

    def __init__(self, graph: Graph, kernel: _Kernel, product: Node) -> None:
        self.graph, self.kernel, self.product = graph, kernel, product
        self.members = set(kernel.scope.members)
        self.carried = self.find_carried(product.name)

    def find_carried(self, value: str) -> set[str]:
        """The value and what the kernel makes from it."""
        carried, pending = {value}, [value]
        while pending:
            for user in self.graph.users[pending.pop()]:
                reads = user in self.members or OPS[self.graph[user].op].is_view
                if reads and user not in carried:
                    carried.add(user)
                    pending.append(user)
        return carried

    def read(self, readers: int) -> Epilogue:
        """readers: how many steps read the product."""
        written = self.kernel.written
        if len(written) != 1:
            raise _MoreThanThatError(f"it writes {len(written)} arrays")
        for member in self.kernel.scope.members:
            node = self.graph[member]
            row = OPS[node.op]
            if not (row.kind is Kind.ELEMENTWISE or row.is_broadcast or row.is_view):
                raise _MoreThanThatError(f"%{member} is a {node.op}")
        product = self.product
        if readers > 1:
            raise _MoreThanThatError(f"%{product.name} has {readers} readers")
        (result,) = written
        attrs, arrays = product.attrs, [self.graph[name].array for name in product.operands]
        assert isinstance(attrs, DotAttrs)
        if product.dtype in _SHORT:
            raise _MoreThanThatError(f"%{product.name} is rounded to {product.dtype.value} before")
        if product.dtype is not DType.F32 or arrays[0].dtype not in _OPERANDS:
            types = [dtype.value for dtype in (arrays[0].dtype, product.dtype)]
            raise _MoreThanThatError(f"%{product.name} makes {types[1]} of {types[0]}")
        types_ = (arrays[0].dtype, arrays[1].dtype, result.type.dtype)
        if not choose_product_types(attrs, *types_):
            raise _MoreThanThatError(f"no library makes {types_[2].value} of {types_[0].value}")
        dot = canonical_dot(attrs, *arrays)
        terms: dict[str, View] = {}
        value = product.name
        while (added := self.find_added(value)) is not None:
            sum_, other = added
            kind, view = self.read_term(other, dot.n, result.type)
            if kind in terms or "bias" in terms:
                raise _MoreThanThatError(f"%{sum_} adds %{other} behind the bias")
            if kind == "bias" and dot.batch > 1:
                raise _MoreThanThatError(f"%{sum_} adds a bias to a batched product")
            terms[kind] = view
            value = sum_
        return Epilogue(
            product.name,
            self.kernel.name,
            result,
            terms.get("residual"),
            terms.get("bias"),
            self.read_activation(value, result),
        )

    def find_added(self, value: str) -> tuple[str, str] | None:
        """The sum of a value and another, where nothing else reads the value; and the other."""
        users = self.find_users(value)
        if len(users) != 1 or not is_addition(self.graph[users[0]]):
            return None
        others = [o for o in self.graph[users[0]].operands if o not in self.carried]
        return (users[0], others[0]) if len(others) == 1 else None

    def find_users(self, value: str) -> list[str]:
        """The readers of a value, through reshapes."""
        users = []
        for user in self.graph.users[value]:
            users += self.find_users(user) if OPS[self.graph[user].op].is_view else [user]
        return users

    def read_term(self, name: str, columns: int, result: ArrayType) -> tuple[str, View]:
        """What is added as "residual" or "bias", and where it lies."""
        kind = "residual"
        node = self.graph[stored_value(self.graph, name)]
        while node.name in self.members or is_embedded(self.graph, node.name):
            if OPS[node.op].is_conversion and result.dtype in _SHORT and node.dtype is DType.F32:
                pass
            elif OPS[node.op].is_broadcast and _repeats_row(self.graph, node, columns):
                kind = "bias"
            else:
                raise _MoreThanThatError(
                    f"%{name}, which it adds, is computed in it: neither a bias for each column nor a residual"
                )
            node = self.graph[stored_value(self.graph, node.operands[0])]
        buffer = storage_name(self.graph, node.name)
        for view in self.kernel.read:
            if view.buffer == buffer and view.type.dtype is result.dtype:
                return kind, view
        raise _MoreThanThatError(
            f"it adds %{name}, whose type is not the result's {result.dtype.value}"
        )

    def read_activation(self, value: str, result: View) -> Activation:
        """What makes the kernel's result of the sum."""
        last = self.graph[stored_value(self.graph, self.kernel.scope.outputs[0])]
        if storage_name(self.graph, last.name) != result.buffer:
            raise _MoreThanThatError(f"it writes %{result.buffer}")
        if OPS[last.op].is_conversion and last.dtype in _SHORT:
            last = self.graph[stored_value(self.graph, last.operands[0])]
        if last.name == stored_value(self.graph, value):
            return Activation.NONE
        found = self.evaluate(last.name, stored_value(self.graph, value))
        for activation, compute, tolerance in _ACTIVATIONS:
            want = compute(_POINTS.astype(np.float64))
            if np.all(np.abs(found - want) <= tolerance * np.abs(_POINTS)):
                return activation
        raise _MoreThanThatError(f"%{last.name} is neither ReLU nor GELU by tanh of %{value}")

    def evaluate(self, name: str, argument: str) -> np.ndarray:
        """A value as a function of another, at all points."""
        values = {argument: _POINTS}
        made = self.find_carried(argument)
        for member in self.kernel.scope.members:
            if member in made and member != argument:
                operands = [
                    self.find_value(operand, values) for operand in self.graph[member].operands
                ]
                type_ = ArrayType(self.graph[member].dtype, _POINTS.shape)
                values[member] = eval_node(replace(self.graph[member], type=type_), operands)[0]
        return values[name]

    def find_value(self, name: str, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """What is computed by now, or a number repeated."""
        node = self.graph[stored_value(self.graph, name)]
        if node.name in values:
            return values[node.name]
        if OPS[node.op].is_broadcast:
            node = self.graph[stored_value(self.graph, node.operands[0])]
        if not isinstance(node.attrs, ConstantAttrs) or node.array.size != 1:
            raise _MoreThanThatError(f"it computes with %{name} besides")
        return np.full(_POINTS.shape, node.attrs.value.numpy().reshape(()))


def _repeats_row(graph: Graph, node: Node, columns: int) -> bool:
    """Is a broadcast, row-major, its operand of `columns` elements again and again?"""
    attrs = node.attrs
    assert isinstance(attrs, BroadcastAttrs)
    if graph[node.operands[0]].array.size != columns:
        return False
    inner: list[int] = []
    size = 1
    for dimension in reversed(range(node.array.rank)):
        if size < columns and node.shape[dimension] > 1:
            inner.insert(0, dimension)
            size *= node.shape[dimension]
    return size == columns and [d for d in attrs.dimensions if node.shape[d] > 1] == inner


def _choose_points() -> np.ndarray:
    """Numbers of all sizes and signs, more of them where activations bend."""
    exponents = np.arange(1, 250, dtype=np.uint32) << 23
    words = (exponents[:, None] | np.array([0, 1, 0x2AAAAA, 0x7FFFFF], np.uint32)).ravel()
    sizes = words.view(np.float32)
    return np.concatenate([sizes, -sizes, np.linspace(-12, 12, 2401, dtype=np.float32)])


_POINTS = _choose_points()


def _rectify(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0))


def _approximate_gelu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


_ACTIVATIONS: tuple[tuple[Activation, Callable[[np.ndarray], np.ndarray], float], ...] = (
    (Activation.RELU, _rectify, 0.0),
    (Activation.GELU, _approximate_gelu, GELU_TOLERANCE),
)
"""The activations as cuBLASLt computes them."""
