"""As much of nvidia-cudnn-frontend as convolutions need, on the host's memory, by the descriptions that it is given."""

from __future__ import annotations

import ctypes
import enum
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from convolve import convolve

from astitch.graph.convolution import CanonicalConvolution, Form, Tensor


class DataType(enum.Enum):
    HALF = np.float16
    FLOAT = np.float32
    DOUBLE = np.float64


class Mode(enum.Enum):
    A = 0
    FALLBACK = 2


class Note(enum.Enum):
    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    NONDETERMINISTIC = 5


class FakeTensor:
    def __init__(self, dim: list[int], stride: list[int], data_type: DataType) -> None:
        self.dim, self.stride, self.data_type = dim, stride, data_type
        self.uid = -1
        self.output = False

    def _set(self, name: str, value: Any) -> FakeTensor:
        setattr(self, name, value)
        return self

    def set_uid(self, uid: int) -> FakeTensor:
        return self._set("uid", uid)

    def set_output(self, output: bool) -> FakeTensor:
        return self._set("output", output)

    def set_data_type(self, data_type: DataType) -> FakeTensor:
        return self._set("data_type", data_type)

    def set_dim(self, dim: list[int]) -> FakeTensor:
        return self._set("dim", dim)

    def set_stride(self, stride: list[int]) -> FakeTensor:
        return self._set("stride", stride)


class FakeGraph:
    def __init__(self, cudnn: FakeCudnn, handle: int) -> None:
        self.cudnn = cudnn
        assert handle == cudnn.handle
        self.plans: list[str] = []
        self.built: set[int] = set()
        self.refused: set[Note] = set()

    def tensor(self, dim: list[int], stride: list[int], data_type: DataType) -> FakeTensor:
        return FakeTensor(dim, stride, data_type)

    def conv_fprop(self, image: FakeTensor, weight: FakeTensor, **given: Any) -> FakeTensor:
        return self._compute(Form.FORWARD, given, image=image, filter=weight)

    def conv_dgrad(self, loss: FakeTensor, filter: FakeTensor, **given: Any) -> FakeTensor:
        return self._compute(Form.INPUT_GRADIENT, given, response=loss, filter=filter)

    def conv_wgrad(self, image: FakeTensor, loss: FakeTensor, **given: Any) -> FakeTensor:
        return self._compute(Form.FILTER_GRADIENT, given, image=image, response=loss)

    def _compute(self, form: Form, given: dict[str, Any], **operands: FakeTensor) -> FakeTensor:
        (missing,) = {"image", "filter", "response"} - set(operands)
        self.form, self.given = form, given
        result = FakeTensor([], [], DataType.DOUBLE)
        self.tensors = {**operands, missing: result}
        return result

    def validate(self) -> None:
        tensors = self.tensors
        assert {t.uid for t in tensors.values()} == {1, 2, 3}
        (output,) = [t for t in tensors.values() if t.output]
        assert output.uid == 3
        if len({t.data_type for t in tensors.values()}) > 1:
            raise RuntimeError("types that differ")
        mirrored = self.given.pop("convolution_mode", None) == "CONVOLUTION"
        described = {
            name: Tensor(tuple(t.dim), tuple(t.stride)) for name, t in self.tensors.items()
        }
        options = {name: tuple(value) for name, value in self.given.items()}
        self.convolution = CanonicalConvolution(
            form=self.form, mirrored=mirrored, **described, **options
        )
        for name, tensor in described.items():
            order = sorted(range(len(tensor.shape)), key=lambda d: -tensor.strides[d])
            assert math.prod(tensor.shape) >= tensor.strides[order[0]], f"{name} is not packed"

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: list[Mode]) -> None:
        assert modes == [Mode.A, Mode.FALLBACK]
        if not self.cudnn.names:
            raise self.cudnn.cudnnGraphNotSupportedError("No valid engine configs\nfor this graph")
        self.plans = list(self.cudnn.names)

    def deselect_numeric_notes(self, notes: list[Note]) -> None:
        assert self.plans, "there is nothing yet to deselect"
        self.refused.update(notes)

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.plans[index]

    def build_plan_at_index(self, index: int) -> None:
        if self.cudnn.notes.get(self.plans[index]) in self.refused:
            raise RuntimeError("Deselecting execution plan")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        return self.cudnn.sizes.get(self.plans[index], 100 * index)

    def execute_plan_at_index(
        self, addresses: dict[int, int], workspace: int, index: int, handle: int
    ) -> None:
        assert index in self.built and handle == self.cudnn.handle
        name = self.plans[index]
        if name in self.cudnn.broken:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        self.cudnn.launched.append(name)
        memory = {}
        for what, tensor in self.tensors.items():
            dtype = np.dtype(tensor.data_type.value)
            count = math.prod(tensor.dim) * dtype.itemsize
            data = (ctypes.c_uint8 * count).from_address(addresses[tensor.uid])
            memory[what] = np.frombuffer(data, dtype)
        convolve(self.convolution, memory["image"], memory["filter"], memory["response"])


class FakeCudnn:
    """The module.  names: of the plans that it has for each convolution.  broken: those that fail as they run.
    notes: what a plan is marked with.  sizes: of their workspaces, where they are not 100 times their number."""

    class cudnnGraphNotSupportedError(Exception):  # noqa: N801  (the library's name)
        pass

    data_type, heur_mode, numerical_note = DataType, Mode, Note
    handle = 4321
    _compiled_module = SimpleNamespace(convolution_mode=SimpleNamespace(CONVOLUTION="CONVOLUTION"))

    def __init__(self, *names: str) -> None:
        self.names = names or ("eng0", "eng1", "eng2")
        self.broken: set[str] = set()
        self.notes: dict[str, Note] = {}
        self.sizes: dict[str, int] = {}
        self.launched: list[str] = []
        self.stream = 0

    def backend_version(self) -> int:
        return 91000

    def create_handle(self) -> int:
        return self.handle

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == self.handle
        self.stream = stream

    def pygraph(
        self,
        io_data_type: DataType,
        intermediate_data_type: DataType,
        compute_data_type: DataType,
        handle: int,
    ) -> FakeGraph:
        assert intermediate_data_type is compute_data_type
        return FakeGraph(self, handle)
