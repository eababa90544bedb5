"""Functions through astitch without the shim: HLO by TensorFlow's own lowering, run by a custom call of XLA's.

Takes a tf.function, hands on a callable that is compiled once for each signature.  Where a tape listens, forward and
backward are two programs, and the forward hands on what the backward needs.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from astitch.errors import AstitchError
from astitch.program.steps import Program
from astitch.system.callbacks import pass_interrupt
from tf_addon.enabling import takeover
from tf_addon.errors import UnsupportedSignature
from tf_addon.ffi import TARGET, the_handlers
from tf_addon.marked_function import options_of
from tf_addon.methods import Method
from tf_addon.programs import (
    choose_place,
    compile_module,
    note_compiled,
    note_refused,
    read_module,
)
from tf_addon.shim_library import STITCHED, XLA
from tf_addon.signatures import is_tensor, list_statics, make_key
from tf_addon.whole_program import make_launch

log = logging.getLogger("tf_addon")

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


def lower_graph(
    graph: Any,
    arguments: Sequence[Any],
    captured: Sequence[Any],
    sources: Sequence[Source],
    name: str,
) -> Any:
    """Compiles a concrete function: a function of its arguments that is nothing but the custom call.

    Variables are read before and assigned after the custom call by the same compiled function, for which TensorFlow
    locks them.  arguments, captured: a TensorSpec, tensor or handle for each of the graph's inputs.  name: for the
    report.  Raises UnsupportedSignature, AstitchError, and what TensorFlow raises for what XLA refuses.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    gpus = tf.config.list_logical_devices("GPU")
    device = gpus[0].name if gpus else HOST
    copies = _copy_variables(sources, device)
    taken = list(zip(sources, [*arguments, *captured], strict=True))
    given = [
        copies[source.variable.ref()].handle if isinstance(source, Read) else tensor
        for source, tensor in taken
    ]
    hlo = context.context().get_compiler_ir(
        device_name=device,
        platform_name=None,
        function_name=graph.name,
        flat_args=given[: len(arguments)],
        captured_inputs=given[len(arguments) :],
        stage="hlo_serialized",
    )
    place = choose_place(0 if gpus else -1, takeover.wishes.engine)
    start = time.perf_counter()
    made = compile_module(read_module(hlo), place, strict=takeover.wishes.strict)
    seconds, program = time.perf_counter() - start, made.program
    if len(program.parameters) != len(sources):
        raise UnsupportedSignature(
            f"{len(sources) - len(program.parameters)} arguments must be compile-time constants\n"
            "  pass them as Python numbers, or use the shim: tf_addon.enable()"
        )
    note_compiled(takeover.records, name, HOST, made, seconds)
    updates = []
    for result, parameter in made.aliases:
        source = sources[parameter]
        assert isinstance(source, Read)
        updates.append((result, source.variable))
    launch = make_launch(program, place)

    def counted(stream: int, operands: Sequence[int], results: Sequence[int]) -> None:
        launch(stream, operands, results)
        takeover.records.note_run(name, HOST, STITCHED)

    custom_call = _make_custom_call(program, the_handlers.add(counted), bool(gpus))

    def call(*given: Any) -> list[Any]:
        results = custom_call([_read_source(source, given) for source in sources])
        for number, variable in updates:
            variable.assign(results[number])
        return results[: len(graph.outputs)]

    specs = [spec for source, spec in taken if isinstance(source, Argument)]
    with tf.init_scope():  # for all graphs that call it
        compiled = tf.function(call, jit_compile=True, autograph=False)
        return compiled.get_concrete_function(*specs)


def _copy_variables(sources: Sequence[Source], device: str) -> dict[Any, Any]:
    """Variables of the same values, for the time of a lowering, by the references of those that they stand for.

    TensorFlow lowers with the interpreter's lock held, and waits for the variables' own: for ever, if a call holds one
    and waits for the interpreter.  The values are not copied.
    """
    import tensorflow as tf

    variables = {s.variable.ref(): s.variable for s in sources if isinstance(s, Read)}
    with tf.init_scope(), tf.device(device):
        return {
            ref: tf.Variable(variable.read_value(), trainable=False, shape=variable.shape)
            for ref, variable in variables.items()
        }


def _read_source(source: Source, given: Sequence[Any]) -> Any:
    """given: the call's tensors."""
    match source:
        case Argument(place):
            return given[place]
        case Captured(tensor):
            return tensor
        case Read(variable):
            return variable.read_value()


def _make_custom_call(
    program: Program, handle: int, on_gpu: bool
) -> Callable[[Sequence[Any]], list[Any]]:
    """A function of the program's parameters, for graphs that XLA compiles; gives all of its results."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    types = [view.type for view in program.outputs]
    module = _write_module(program, handle)

    def call(operands: Sequence[Any]) -> list[Any]:
        return list(
            gen_xla_ops.xla_call_module(
                operands,
                version=_MODULE_VERSION,
                module=module,
                Tout=[tf.as_dtype(type_.dtype.numpy) for type_ in types],
                Sout=[list(type_.shape) for type_ in types],
                platforms=["CUDA" if on_gpu else "CPU"],
            )
        )

    return call


def _write_module(program: Program, handle: int) -> bytes:
    """StableHLO with one custom call, which names the handle."""

    def render(type_: Any) -> str:
        extents = "".join(f"{extent}x" for extent in type_.shape)
        return f"tensor<{extents}{_MLIR[type_.dtype.numpy.name]}>"

    operands = [render(view.type) for view in program.parameters]
    results = [render(view.type) for view in program.outputs]
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
    """A signature without gradients: no tape hears it, or nothing is connected.  structure: of the results.  call: see
    lower_graph."""

    structure: Any
    call: Any

    def run(self, tensors: Sequence[Any]) -> Any:
        """The function's results; its variables are assigned."""
        import tensorflow as tf
        from tensorflow.python.eager import record

        with record.stop_recording():
            found = self.call(*tensors)
        return tf.nest.pack_sequence_as(self.structure, found)


@dataclass(frozen=True, slots=True)
class Trained:
    """A signature whose calls a tape hears.

    forward: gives `count` results, then what the backward keeps.  backward: takes the gradients of the results
    `floats`, then what was kept; gives the gradients of those `inputs` that are `connected`: the others have none.
    """

    structure: Any
    count: int
    forward: Any
    backward: Any
    inputs: tuple[Source, ...]
    connected: tuple[bool, ...]
    floats: tuple[int, ...]

    def run(self, tensors: Sequence[Any]) -> Any:
        """The function's results, which the tape knows how to derive; its variables are assigned."""
        import tensorflow as tf
        from tensorflow.python.eager import record

        # Variables are read where the tape hears it: the gradient of the value is the variable's.
        watched = [_read_source(source, tensors) for source in self.inputs]
        with record.stop_recording():  # the custom call itself has no gradient
            found = self.forward(*tensors)
        results, kept = found[: self.count], found[self.count :]

        def derive(*gradients: Any) -> list[Any]:
            given = [gradients[i] for i in self.floats]
            with record.stop_recording():
                derived = self.backward(*given, *kept)
            linked = iter(_link(derived, [*watched, *given], _refuse_second))
            return [next(linked) if has_one else None for has_one in self.connected]

        return tf.nest.pack_sequence_as(self.structure, _link(results, watched, derive))


def _link(
    results: Sequence[Any], inputs: Sequence[Any], derive: Callable[..., list[Any]]
) -> list[Any]:
    """The results, recorded on a tape with a function from their gradients to the gradients of the inputs."""
    import tensorflow as tf

    linked = tf.custom_gradient(lambda *_: (list(results), derive))(*inputs)
    return list(linked)


def _refuse_second(*_: Any) -> list[Any]:
    raise UnsupportedSignature(
        "a gradient of a gradient, which there is not without the shim\n"
        "  use the shim (tier='shim') or tf.function for second derivatives"
    )


Made = Inference | Trained


class PythonTier(Method):
    """A function compiled once for each signature; what cannot be is tf.function(jit_compile=True)'s, and reported."""

    def __init__(self, plain: Any) -> None:
        """plain: the function as tf.function(jit_compile=True)."""
        import tensorflow as tf

        super().__init__()
        functools.update_wrapper(self, plain.python_function)
        self._title = plain._name
        self.plain = plain
        unsigned = {**options_of(plain), "jit_compile": None, "input_signature": None}
        self._inner = tf.function(plain.python_function, **unsigned)
        self._made: dict[Hashable, Made | None] = {}
        self._beyond: set[int] = set()  # limits that were reached
        self._kept: list[Any] = []  # static arguments: those known by their address must stay
        self._lock = threading.RLock()
        # Autograph else rewrites our code, the whole compiler, when a graph calls it.
        self._unconverted = tf.autograph.experimental.do_not_convert(self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self._unconverted(*args, **kwargs)

    def bind(self, instance: object, owner: type | None) -> PythonTier:
        """Each instance has signatures of its own."""
        return PythonTier(self.plain.__get__(instance, owner))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        try:
            given = self._convert(args, kwargs)
        except (ValueError, TypeError):  # TensorFlow has better words for it
            return self.plain(*args, **kwargs)
        leaves = tf.nest.flatten(given)
        places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
        tensors = [tf.convert_to_tensor(leaves[i]) for i in places]
        made = self._find(given, leaves, places, tensors)
        if made is not None:
            return made.run(tensors)
        if tf.executing_eagerly():
            takeover.records.note_run(self._name_part("inference"), HOST, XLA)
        return self.plain(*args, **kwargs)

    def _convert(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments that an input_signature names as tensors of its types.  Raises ValueError, TypeError."""
        import tensorflow as tf

        signature = self.plain.input_signature
        if not signature:
            return args, kwargs

        def convert(spec: Any, leaf: Any) -> Any:
            tensor = tf.convert_to_tensor(leaf, spec.dtype)
            if not spec.is_compatible_with(tensor):
                raise ValueError(f"{tensor} is no {spec}")
            return tensor

        bound = inspect.signature(self.plain.python_function).bind(*args, **kwargs)
        named, more = bound.args[: len(signature)], bound.args[len(signature) :]
        map_leaves = tf.__internal__.nest.map_structure_up_to
        converted = map_leaves(
            tuple(signature[: len(named)]), convert, signature[: len(named)], named
        )
        return (*converted, *more), bound.kwargs

    def _find(
        self, given: Any, leaves: Sequence[Any], places: Sequence[int], tensors: Sequence[Any]
    ) -> Made | None:
        """What was made of the signature of a call; None where XLA has it."""
        import tensorflow as tf

        context = _has_tape(), tf.executing_eagerly()
        key = (make_key(given, leaves, places, tensors), context)
        limit = takeover.wishes.max_signatures
        with self._lock:
            if key not in self._made:
                if len(self._made) >= limit:
                    self._note_beyond(limit)
                    return None
                made = self._make(given, leaves, places, tensors)
                self._kept += list_statics(leaves, places)  # not those of a call that fails
                self._made[key] = made
            return self._made[key]

    def _make(
        self, given: Any, leaves: Sequence[Any], places: Sequence[int], tensors: Sequence[Any]
    ) -> Made | None:
        """None where it is left to XLA, with a reason in the report.  Raises what the function itself raises."""
        import tensorflow as tf

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]

        def fill(flat: Sequence[Any]) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, flat, strict=True):
                filled[place] = tensor
            return tf.nest.pack_sequence_as(given, filled)

        args, kwargs = fill(specs)
        traced = self._inner.get_concrete_function(*args, **kwargs)

        def run(*flat: Any) -> list[Any]:
            args, kwargs = fill(flat)
            results = tf.nest.flatten(self._inner(*args, **kwargs))
            return [tf.convert_to_tensor(result) for result in results]

        try:
            return self._lower(traced, run, specs)
        except Exception as error:  # a fault of ours is no reason to end the program
            pass_interrupt(error)
            if not isinstance(error, AstitchError | tf.errors.OpError | ValueError | TypeError):
                log.exception("a bug in astitch: %s is left to XLA", self._title)
            self._refuse(f"{type(error).__name__}: {error}")
            return None

    def _note_beyond(self, limit: int) -> None:
        """One signature too many; told once."""
        if limit not in self._beyond:
            self._beyond.add(limit)
            self._refuse(
                f"more than {limit} signatures (shapes, types, constant values); XLA compiles the others: "
                "pad to fewer shapes, or enable(max_signatures=...)"
            )

    def _refuse(self, reason: str) -> None:
        note_refused(takeover.records, self._name_part("inference"), HOST, reason, XLA)

    def _lower(self, traced: Any, run: Callable[..., list[Any]], specs: Sequence[Any]) -> Made:
        """traced: the function's own graph.  run: the function, of tensors and to tensors."""
        import tensorflow as tf

        for spec in specs:
            if not spec.shape.is_fully_defined():
                raise UnsupportedSignature(
                    f"an argument has the shape {spec.shape}\n  call it eagerly, or with known shapes"
                )
        # Variables among the arguments are inputs of `traced`, but here captures, which have gradients.
        graph = tf.function(run, autograph=False).get_concrete_function(*specs)
        sources = _find_sources(graph, specs)
        inputs = tuple(source for source in sources if _can_be_derived(source, specs))
        if inputs and _has_tape():
            trained = self._lower_trained(traced, run, specs, inputs)
            if trained is not None:
                return trained
        name = self._name_part("inference")
        call = lower_graph(graph, specs, graph.captured_inputs, sources, name)
        return Inference(traced.structured_outputs, call)

    def _lower_trained(
        self,
        traced: Any,
        run: Callable[..., list[Any]],
        specs: Sequence[Any],
        inputs: tuple[Source, ...],
    ) -> Trained | None:
        """The backward is traced inside of the forward: the values of the forward that it captures become results.

        None where no result is connected to an input.
        """
        import tensorflow as tf

        parts: list[Any] = []

        def forward(*flat: Any) -> list[Any]:
            watched = [
                source.variable if isinstance(source, Read) else _read_source(source, flat)
                for source in inputs
            ]
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(watched)
                results = run(*flat)
            floats = tuple(i for i, result in enumerate(results) if _is_trained(result.dtype))
            connected: list[bool] = []

            def backward(*gradients: Any) -> list[Any]:
                given = list(gradients)
                found = tape.gradient([results[i] for i in floats], watched, given)
                connected[:] = [gradient is not None for gradient in found]
                return [tf.convert_to_tensor(one) for one in found if one is not None]

            given = [tf.TensorSpec(results[i].shape, results[i].dtype) for i in floats]
            graph = tf.function(backward, autograph=False).get_concrete_function(*given)
            parts[:] = graph, given, tuple(connected), floats, len(results)
            return [*results, *(t for t in graph.captured_inputs if t.dtype != tf.resource)]

        whole = tf.function(forward, autograph=False).get_concrete_function(*specs)
        graph, given, connected, floats, count = parts
        if not any(connected):
            return None
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
        return Trained(traced.structured_outputs, count, ours, theirs, inputs, connected, floats)

    def _name_part(self, part: str) -> str:
        """The name that TensorFlow gives a part of a function; see report.title_of."""
        if part == "backward":
            return f"__inference___backward_{self._title}_0_0"
        return f"__{part}_{self._title}_0"


def _find_sources(graph: Any, specs: Sequence[Any]) -> list[Source]:
    """Where a concrete function's inputs come from: its arguments, then what it captures."""
    captured = [_find_source(graph, tensor) for tensor in graph.captured_inputs]
    return [*(Argument(i) for i in range(len(specs))), *captured]


def _find_source(graph: Any, tensor: Any) -> Source:
    """A captured tensor, or the variable whose handle it is."""
    import tensorflow as tf

    if tensor.dtype != tf.resource:
        if not hasattr(tensor, "numpy"):
            raise UnsupportedSignature(
                f"it takes {tensor.name} from the function that is being traced around it\n"
                "  pass it as an argument, or use the shim: tf_addon.enable()"
            )
        return Captured(tensor)
    for variable in graph.graph.variables:
        if variable.handle is tensor:
            return Read(variable)
    raise UnsupportedSignature(
        "the function uses a resource that is no variable\n  use the shim: tf_addon.enable()"
    )


def _can_be_derived(source: Source, specs: Sequence[Any]) -> bool:
    """Has the source a gradient?"""
    match source:
        case Argument(place):
            return _is_trained(specs[place].dtype)
        case Captured(tensor):
            return _is_trained(tensor.dtype)
        case Read(variable):
            return _is_trained(variable.dtype)


def _is_trained(dtype: Any) -> bool:
    """Are there gradients of the type?"""
    return bool(dtype.is_floating or dtype.is_complex)


def _has_tape() -> bool:
    """Does a tape listen to this thread?"""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())
