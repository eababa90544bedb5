"""The interface's structs beside the header that JAX brings, and a handler in JAX's CPU client."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astitch.run import xla_ffi
from astitch.run.xla_ffi import Frame, Handler, answer_metadata, find_stream, make_handler

LAYOUTS: dict[str, tuple[type[ctypes.Structure], dict[str, str]]] = {
    "Api": (
        xla_ffi.Api,
        {
            "version": "api_version",
            "internal": "internal_api",
            "error_create": "XLA_FFI_Error_Create",
            "error_destroy": "XLA_FFI_Error_Destroy",
            "handler_register": "XLA_FFI_Handler_Register",
            "stream_get": "XLA_FFI_Stream_Get",
        },
    ),
    "Api_Version": (xla_ffi.Version, {"major": "major_version", "minor": "minor_version"}),
    "CallFrame": (
        Frame,
        {
            "ext": "extension_start",
            "api": "api",
            "context": "ctx",
            "stage": "stage",
            "arguments": "args",
            "results": "rets",
            "attributes": "attrs",
        },
    ),
    "Args": (xla_ffi.Buffers, {"count": "size", "types": "types", "pointers": "args"}),
    "Rets": (xla_ffi.Buffers, {"count": "size", "types": "types", "pointers": "rets"}),
    "Attrs": (
        xla_ffi.Attributes,
        {"count": "size", "types": "types", "names": "names", "pointers": "attrs"},
    ),
    "Metadata": (xla_ffi.Metadata, {"version": "api_version", "traits": "traits"}),
    "Metadata_Extension": (
        xla_ffi.MetadataExtension,
        {"base": "extension_base", "metadata": "metadata"},
    ),
    "Error_Create_Args": (xla_ffi.ErrorCreation, {"message": "message", "code": "errc"}),
    "Error_Destroy_Args": (xla_ffi.ErrorDestruction, {"error": "error"}),
    "Stream_Get_Args": (xla_ffi.StreamQuestion, {"context": "ctx", "stream": "stream"}),
}


def test_structs_lie_as_in_the_header_of_jax(tmp_path: Path) -> None:
    ffi = pytest.importorskip("jax.ffi")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    questions = [
        (struct, ours, theirs)
        for struct, (_, fields) in LAYOUTS.items()
        for ours, theirs in fields.items()
    ]
    numbers = {
        "XLA_FFI_Extension_Metadata": xla_ffi._METADATA_EXTENSION,
        "XLA_FFI_Error_Code_INTERNAL": xla_ffi._INTERNAL,
    }
    asked = [f"offsetof(XLA_FFI_{struct}, {theirs})" for struct, _, theirs in questions]
    asked += [f"static_cast<std::size_t>({name})" for name in numbers]
    lines = "\n".join(f'  std::printf("%zu\\n", {what});' for what in asked)
    source, program = tmp_path / "offsets.cc", tmp_path / "offsets"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "xla/ffi/api/c_api.h"\nint main() {{\n{lines}\n}}\n'
    )
    subprocess.run(
        [compiler, "-std=c++17", "-I", ffi.include_dir(), source, "-o", program], check=True
    )
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    here = [getattr(LAYOUTS[struct][0], ours).offset for struct, ours, _ in questions]
    assert dict(zip(asked, map(int, told), strict=True)) == dict(
        zip(asked, [*here, *numbers.values()], strict=True)
    )


def test_a_handler_runs_in_jax_and_what_it_raises_is_jax_s_error() -> None:
    jax = pytest.importorskip("jax")
    ffi = pytest.importorskip("jax.ffi")
    apis: list[Any] = []
    done: list[Any] = []

    def learn(pointer: Any) -> int | None:
        frame = pointer.contents
        apis.append(frame.api.contents)
        answer_metadata(frame, apis[0])
        return None

    def run(frame: Frame) -> None:
        done.append((frame.arguments.count, frame.results.count, find_stream(frame, apis[0])))
        if len(done) > 1:
            raise ValueError("of ours")

    def register(name: str, handler: Any) -> Any:
        ffi.register_ffi_target(name, ffi.pycapsule(handler), platform="cpu")
        _kept.append(handler)
        types = jax.ShapeDtypeStruct((), np.int8)
        return jax.jit(ffi.ffi_call(name, types, has_side_effect=True))

    with jax.default_device(jax.devices("cpu")[0]):
        register("astitch_test_api", Handler(learn))(np.int8(0)).block_until_ready()
        call = register("astitch_test_handler", make_handler(apis[0], run))
        call(np.int8(0)).block_until_ready()
        assert done == [(1, 1, None)]
        with pytest.raises(jax.errors.JaxRuntimeError, match="astitch: ValueError: of ours"):
            call(np.int8(0)).block_until_ready()


_kept: list[Any] = []
"""What XLA points to."""
