"""Functions through astitch without the shim: HLO by TensorFlow's own lowering, run by a custom call of XLA's.

Takes a Python function, hands on a callable that is compiled once for each signature.  Where a tape listens, forward
and backward are two programs, and the forward hands on what the backward needs; variables are assigned afterwards.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astitch.errors import AstitchError
from astitch.program import Program
from tf_addon.errors import UnsupportedSignature
from tf_addon.ffi import TARGET, the_handlers
from tf_addon.programs import choose_place, compile_module, note_compiled, read_module
from tf_addon.shim_library import STITCHED, XLA
from tf_addon.switch import the_switch
from tf_addon.whole_program import make_launch

HOST = "/job:localhost/replica:0/task:0/device:CPU:0"

_MLIR = {
    "bool": "i1",
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"ui{n}" for n in (8, 16, 32, 64)},
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
_MODULE_VERSION = 9  # of XlaCallModule's contract: platforms are named


# ---- one graph as one custom call --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """The tensor that the call gives in this place."""

    place: int


@dataclass(frozen=True, slots=True)
class Captured:
    """A tensor that the function found outside of its arguments."""

    tensor: Any


@dataclass(frozen=True, slots=True)
class Read:
    """The value of a variable."""

    variable: Any


Source = Argument | Captured | Read


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as one custom call.

    sources: of each parameter.  count: how many of the call's results are the graph's; the others are new values of
    variables.  updates: the number of such a result, and its variable.
    """

    call: Any
    sources: tuple[Source, ...]
    count: int
    updates: tuple[tuple[int, Any], ...]

    def read_variables(self) -> dict[Any, Any]:
        """The values of its variables now, by the variables' references."""
        variables = {s.variable.ref(): s.variable for s in self.sources if isinstance(s, Read)}
        return {ref: variable.read_value() for ref, variable in variables.items()}

    def run(self, tensors: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
        """All results, those for variables too."""
        operands = []
        for source in self.sources:
            match source:
                case Argument(place):
                    operands.append(tensors[place])
                case Captured(tensor):
                    operands.append(tensor)
                case Read(variable):
                    operands.append(values[variable.ref()])
        return list(self.call(*operands))

    def update(self, results: Sequence[Any]) -> None:
        """Assigns the new values of variables."""
        for number, variable in self.updates:
            variable.assign(results[number])


def lower_graph(
    graph: Any,
    arguments: Sequence[Any],
    captured: Sequence[Any],
    sources: Sequence[Source],
    name: str,
) -> Lowered:
    """Compiles a concrete function.  arguments, captured: a TensorSpec, tensor or handle for each of its inputs.

    name: for the report.  Raises UnsupportedSignature, AstitchError, and what TensorFlow raises for what XLA refuses.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    gpus = tf.config.list_logical_devices("GPU")
    hlo = context.context().get_compiler_ir(
        device_name=gpus[0].name if gpus else HOST,
        platform_name=None,
        function_name=graph.name,
        flat_args=list(arguments),
        captured_inputs=list(captured),
        stage="hlo_serialized",
    )
    place = choose_place(0 if gpus else -1, the_switch.wishes.engine)
    start = time.perf_counter()
    made = compile_module(read_module(hlo), place, strict=the_switch.wishes.strict)
    seconds, program = time.perf_counter() - start, made.program
    if len(program.parameters) != len(sources):
        raise UnsupportedSignature(
            f"{len(sources) - len(program.parameters)} arguments must be compile-time constants\n"
            "  pass them as Python numbers, or use the shim: tf_addon.enable()"
        )
    note_compiled(the_switch.records, name, HOST, made, seconds)
    updates = []
    for result, parameter in made.aliases:
        source = sources[parameter]
        assert isinstance(source, Read)
        updates.append((result, source.variable))
    launch = make_launch(program, place)

    def counted(stream: int, operands: Sequence[int], results: Sequence[int]) -> None:
        launch(stream, operands, results)
        the_switch.records.note_run(name, HOST, STITCHED)

    call = _make_call(program, the_handlers.add(counted), bool(gpus))
    return Lowered(call, tuple(sources), len(graph.outputs), tuple(updates))


def _make_call(program: Program, handle: int, on_gpu: bool) -> Any:
    """A compiled function of tensors that is nothing but the custom call."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    types = [view.type for view in program.outputs]
    module = _write_module(program, handle)

    def call(*operands: Any) -> Any:
        return gen_xla_ops.xla_call_module(
            operands,
            version=_MODULE_VERSION,
            module=module,
            Tout=[tf.as_dtype(type_.dtype.numpy) for type_ in types],
            Sout=[list(type_.shape) for type_ in types],
            platforms=["CUDA" if on_gpu else "CPU"],
        )

    return tf.function(call, jit_compile=True, autograph=False)


def _write_module(program: Program, handle: int) -> bytes:
    """StableHLO with one custom call, which names the handle."""

    def spell(type_: Any) -> str:
        extents = "".join(f"{extent}x" for extent in type_.shape)
        return f"tensor<{extents}{_MLIR[type_.dtype.numpy.name]}>"

    operands = [spell(view.type) for view in program.parameters]
    results = [spell(view.type) for view in program.outputs]
    names = [f"%a{i}" for i in range(len(operands))]
    count = len(results)
    head, shown = (
        ("%r", ["%r"]) if count == 1 else (f"%r:{count}", [f"%r#{i}" for i in range(count)])
    )
    parameters = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    types = ", ".join(results)
    attributes = f"{{api_version = 4 : i32, backend_config = {{handle = {handle} : i64}}}}"
    lines = [
        f"module @astitch {{ func.func public @main({parameters}) -> ({types}) {{",
        f"{head} = stablehlo.custom_call @{TARGET}({', '.join(names)}) {attributes}",
        f": ({', '.join(operands)}) -> ({types})",
        f"return {', '.join(shown)} : {types} }} }}",
    ]
    return "\n".join(lines).encode()


# ---- one signature -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inference:
    """A signature whose calls no tape hears.  structure: of the results."""

    structure: Any
    graph: Lowered

    def run(self, tensors: Sequence[Any]) -> Any:
        """The function's results; its variables are assigned."""
        import tensorflow as tf

        found = self.graph.run(tensors, self.graph.read_variables())
        self.graph.update(found)
        return tf.nest.pack_sequence_as(self.structure, found[: self.graph.count])


@dataclass(frozen=True, slots=True)
class Trained:
    """A signature whose calls a tape hears.

    forward: gives `count` results, then what the backward keeps.  backward: takes the gradients of the results
    `floats`, then what was kept; gives the gradients of the arguments `inputs`, then of `variables`.
    """

    structure: Any
    count: int
    forward: Lowered
    backward: Lowered
    inputs: tuple[int, ...]
    variables: tuple[Any, ...]
    floats: tuple[int, ...]

    def run(self, tensors: Sequence[Any]) -> Any:
        """The function's results, which the tape knows how to derive; its variables are assigned."""
        import tensorflow as tf
        from tensorflow.python.eager import record

        # Read outside, where the tape hears it: the gradient of the value is the variable's.
        values = {**self.backward.read_variables(), **self.forward.read_variables()}

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def call(*_: Any) -> Any:
            with record.stop_recording():  # the custom call itself has no gradient
                found = self.forward.run(tensors, values)
            kept = found[self.count : self.forward.count]

            def derive(*gradients: Any) -> list[Any]:
                if record.could_possibly_record():
                    raise UnsupportedSignature(
                        "a tape listens to a gradient, which without the shim has no gradient itself\n"
                        "  use the shim (tier='shim') or tf.function for second derivatives, or ask the inner tape "
                        "outside of the outer one"
                    )
                given = [gradients[i] for i in self.floats]
                return self.backward.run([*given, *kept], values)

            return found, derive

        watched = [tensors[i] for i in self.inputs]
        found = call(*watched, *(values[variable.ref()] for variable in self.variables))
        self.forward.update(found)
        return tf.nest.pack_sequence_as(self.structure, found[: self.count])


Made = Inference | Trained


class PythonTier:
    """A function compiled once for each signature; what cannot be is tf.function(jit_compile=True)'s, and reported."""

    def __init__(self, fn: Callable[..., Any], options: Mapping[str, Any]) -> None:
        import tensorflow as tf

        functools.update_wrapper(self, fn)
        self._title = getattr(fn, "__name__", "function")
        self._plain = tf.function(fn, **{**options, "jit_compile": True})
        self._inner = tf.function(fn, **{**options, "jit_compile": None})
        self._made: dict[Hashable, Made | None] = {}
        self._kept: list[Any] = []  # static arguments: those known by their address must stay
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        import tensorflow as tf

        leaves = tf.nest.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
        tensors = [tf.convert_to_tensor(leaves[i]) for i in places]
        made = self._find((args, kwargs), leaves, places, tensors)
        if made is not None:
            return made.run(tensors)
        if tf.executing_eagerly():
            the_switch.records.note_run(self._name_part("inference"), HOST, XLA)
        return self._plain(*args, **kwargs)

    def _find(
        self, given: Any, leaves: Sequence[Any], places: Sequence[int], tensors: Sequence[Any]
    ) -> Made | None:
        """What was made of the signature of a call; None where XLA has it."""
        import tensorflow as tf

        listens = _has_tape()
        specs = tuple((tensor.dtype, str(tensor.shape)) for tensor in tensors)
        statics = tuple(_key_of(leaf) for i, leaf in enumerate(leaves) if i not in places)
        structure = str(tf.nest.map_structure(lambda _: 0, given))
        key = (structure, tuple(places), specs, statics, listens)
        with self._lock:
            if key not in self._made:
                self._kept += [leaf for i, leaf in enumerate(leaves) if i not in places]
                try:
                    self._made[key] = self._make(given, leaves, places, tensors, listens)
                except (AstitchError, tf.errors.OpError, ValueError, TypeError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    the_switch.records.note_refused(self._name_part("inference"), HOST, reason, XLA)
                    self._made[key] = None
            return self._made[key]

    def _make(
        self,
        given: Any,
        leaves: Sequence[Any],
        places: Sequence[int],
        tensors: Sequence[Any],
        listens: bool,
    ) -> Made:
        import tensorflow as tf

        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                raise UnsupportedSignature(
                    f"an argument has the shape {tensor.shape}\n  call it eagerly, or with known shapes"
                )
        structure: list[Any] = []

        def run(*flat: Any) -> list[Any]:
            filled = list(leaves)
            for place, tensor in zip(places, flat, strict=True):
                filled[place] = tensor
            args, kwargs = tf.nest.pack_sequence_as(given, filled)
            results = self._inner(*args, **kwargs)
            structure.append(results)
            return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(results)]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        if listens:
            return self._make_trained(run, specs, structure)
        graph = tf.function(run, autograph=False).get_concrete_function(*specs)
        name = self._name_part("inference")
        lowered = lower_graph(
            graph, specs, graph.captured_inputs, _find_sources(graph, specs), name
        )
        return Inference(structure[-1], lowered)

    def _make_trained(
        self, run: Callable[..., list[Any]], specs: Sequence[Any], structure: Sequence[Any]
    ) -> Trained:
        """The backward is traced inside of the forward: the values of the forward that it captures become results."""
        import tensorflow as tf

        traced: list[Any] = []

        def forward(*flat: Any) -> list[Any]:
            inputs = tuple(i for i, tensor in enumerate(flat) if tensor.dtype.is_floating)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([flat[i] for i in inputs])
                results = run(*flat)
            variables = tuple(tape.watched_variables())
            floats = tuple(i for i, result in enumerate(results) if result.dtype.is_floating)

            def backward(*gradients: Any) -> list[Any]:
                found = tape.gradient(
                    [results[i] for i in floats],
                    [*(flat[i] for i in inputs), *variables],
                    output_gradients=list(gradients),
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
                return [tf.convert_to_tensor(gradient) for gradient in found]

            given = [tf.TensorSpec(results[i].shape, results[i].dtype) for i in floats]
            graph = tf.function(backward, autograph=False).get_concrete_function(*given)
            traced[:] = graph, given, inputs, variables, floats, len(results)
            return [*results, *(t for t in graph.captured_inputs if t.dtype != tf.resource)]

        whole = tf.function(forward, autograph=False).get_concrete_function(*specs)
        graph, given, inputs, variables, floats, count = traced
        name = self._name_part("forward")
        ours = lower_graph(whole, specs, whole.captured_inputs, _find_sources(whole, specs), name)
        # What the backward captured lies in the forward's graph: a value that it now gives, or a variable of its own.
        known = {id(inner): outer for outer, inner in whole.graph.captures}
        sources: list[Source] = [Argument(i) for i in range(len(given))]
        captured: list[Any] = []
        place = len(given)
        for tensor in graph.captured_inputs:
            if tensor.dtype == tf.resource:
                sources.append(_find_source(whole, known[id(tensor)]))
                captured.append(known[id(tensor)])
            else:
                sources.append(Argument(place))
                captured.append(tf.TensorSpec(tensor.shape, tensor.dtype))
                place += 1
        theirs = lower_graph(graph, [*given, *captured], [], sources, self._name_part("backward"))
        return Trained(structure[-1], count, ours, theirs, inputs, variables, floats)

    def _name_part(self, part: str) -> str:
        """As TensorFlow names the parts of a function; see report.title_of."""
        if part == "backward":
            return f"__inference___backward_{self._title}_0_0"
        return f"__{part}_{self._title}_0"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method of a class."""
        return self if instance is None else functools.partial(self, instance)


def _find_sources(graph: Any, specs: Sequence[Any]) -> list[Source]:
    """Where a concrete function's inputs come from: its arguments, then what it captures."""
    captured = [_find_source(graph, tensor) for tensor in graph.captured_inputs]
    return [*(Argument(i) for i in range(len(specs))), *captured]


def _find_source(graph: Any, tensor: Any) -> Source:
    """A captured tensor, or the variable whose handle it is."""
    import tensorflow as tf

    if tensor.dtype != tf.resource:
        return Captured(tensor)
    for variable in graph.graph.variables:
        if variable.handle is tensor:
            return Read(variable)
    raise UnsupportedSignature(
        "the function uses a resource that is no variable\n  use the shim: tf_addon.enable()"
    )


def _has_tape() -> bool:
    """Does a tape listen to this thread?"""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())


def _is_tensor(leaf: Any) -> bool:
    import numpy as np
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor | np.ndarray | np.generic)


def _key_of(leaf: Any) -> Hashable:
    """A static argument: by its value where it has one, else by what it is."""
    is_value = leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes)
    return (type(leaf), repr(leaf)) if is_value else id(leaf)
