"""The protobuf messages of an HLO module: hands on the message classes that hlo_import reads and hlo_export writes.

Beside them the options of XLA's that have no other way in (library/xla_fallback.py).
Only the fields that astitch knows are named, with XLA's numbers (xla/service/hlo.proto and
xla/xla_data.proto; of options xla/xla.proto and xla/pjrt/proto/compile_options.proto); the parser
skips the others, so a dump of any XLA version parses.  Enums are read as numbers and strings as bytes, which are the
same on the wire.  So a name that is not UTF-8 does not make a module unreadable.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

# message: `field type number` each; a type ending in * is repeated, a capitalised one is a message.
_MESSAGES = {
    "LayoutProto": "minor_to_major int64* 1, memory_space int64 8",
    "ShapeProto": """
        element_type int32 2, dimensions int64* 3, tuple_shapes ShapeProto* 4, layout LayoutProto 5,
        is_dynamic_dimension bool* 6""",
    "ProgramShapeProto": "parameters ShapeProto* 1, result ShapeProto 2, parameter_names bytes* 3",
    "OpMetadata": """
        op_name bytes 2, source_file bytes 3, source_line int32 4, stack_frame_id int32 15""",
    "LiteralProto": """
        shape ShapeProto 1, preds bool* 2, u8s bytes 3, s32s int32* 4, s64s int64* 5,
        u32s uint32* 6, u64s uint64* 7, f32s float* 8, f64s double* 9,
        tuple_literals LiteralProto* 10, f16s bytes 11, c64s float* 12, bf16s bytes 13,
        s8s bytes 15, u16s bytes 16, s16s bytes 17, c128s double* 18, f8e5m2s bytes 19,
        f8e4m3fns bytes 20""",
    "WindowDimension": """
        size int64 1, stride int64 2, padding_low int64 3, padding_high int64 4,
        window_dilation int64 5, base_dilation int64 6, window_reversal bool 7""",
    "Window": "dimensions WindowDimension* 1",
    "GatherDimensionNumbers": """
        offset_dims int64* 1, collapsed_slice_dims int64* 2, start_index_map int64* 3,
        index_vector_dim int64 4, operand_batching_dims int64* 5,
        start_indices_batching_dims int64* 6""",
    "ScatterDimensionNumbers": """
        update_window_dims int64* 1, inserted_window_dims int64* 2,
        scatter_dims_to_operand_dims int64* 3, index_vector_dim int64 4,
        input_batching_dims int64* 5, scatter_indices_batching_dims int64* 6""",
    "ConvolutionDimensionNumbers": """
        kernel_input_feature_dimension int64 3, kernel_output_feature_dimension int64 4,
        kernel_spatial_dimensions int64* 6, input_batch_dimension int64 7,
        input_feature_dimension int64 8, output_batch_dimension int64 9,
        output_feature_dimension int64 10, input_spatial_dimensions int64* 11,
        output_spatial_dimensions int64* 12""",
    "DotDimensionNumbers": """
        lhs_contracting_dimensions int64* 1, rhs_contracting_dimensions int64* 2,
        lhs_batch_dimensions int64* 3, rhs_batch_dimensions int64* 4""",
    "PrecisionConfig": "operand_precision int32* 1, algorithm int32 2",
    "PaddingConfigDimension": """
        edge_padding_low int64 1, edge_padding_high int64 2, interior_padding int64 3""",
    "PaddingConfig": "dimensions PaddingConfigDimension* 1",
    "TriangularSolveOptions": """
        left_side bool 1, lower bool 2, unit_diagonal bool 3, transpose_a int32 4""",
    "CholeskyOptions": "lower bool 1",
    "SliceDimensions": "start int64 1, limit int64 2, stride int64 3",
    "Tolerance": "atol double 1, rtol double 2, ulps int64 3",
    "ResultAccuracy": "mode int32 1, tolerance Tolerance 2",
    "OutputOperandAliasing": """
        output_shape_index int64* 1, operand_index int64 2, operand_shape_index int64* 3""",
    "HloInstructionProto": """
        name bytes 1, opcode bytes 2, shape ShapeProto 3, metadata OpMetadata 7,
        literal LiteralProto 8, parameter_number int64 9, tuple_index int64 13,
        dimensions int64* 14, window Window 15,
        convolution_dimension_numbers ConvolutionDimensionNumbers 16,
        slice_dimensions SliceDimensions* 17, exponent_bits int32 18, mantissa_bits int32 19,
        dynamic_slice_sizes int64* 20, padding_config PaddingConfig 21, distribution int32 23,
        epsilon float 24, feature_index int64 25, custom_call_target bytes 28,
        dot_dimension_numbers DotDimensionNumbers 30, fft_type int32 31, fft_length int64* 32,
        gather_dimension_numbers GatherDimensionNumbers 33, gather_slice_sizes int64* 34,
        id int64 35, operand_ids int64* 36, control_predecessor_ids int64* 37, called_computation_ids int64* 38,
        backend_config bytes 43, scatter_dimension_numbers ScatterDimensionNumbers 48,
        feature_group_count int64 50, precision_config PrecisionConfig 51,
        constrain_layout bool 56, operand_shapes_with_layout ShapeProto* 57,
        batch_group_count int64 58, triangular_solve_options TriangularSolveOptions 59,
        is_stable bool 60, cholesky_options CholeskyOptions 62, comparison_direction bytes 63,
        custom_call_has_side_effect bool 65, delta int64 66, indices_are_sorted bool 67,
        frontend_attributes FrontendAttributes 68, unique_indices bool 69, rng_algorithm int32 70,
        comparison_type bytes 72, output_operand_aliasing OutputOperandAliasing* 74, custom_call_schedule int32 76,
        custom_call_api_version int32 77, k int64 81, largest bool 85,
        result_accuracy ResultAccuracy 91, is_reverse bool 94,
        comparison_order bytes 102""",
    "HloComputationProto": """
        name bytes 1, instructions HloInstructionProto* 2, program_shape ProgramShapeProto 4,
        id int64 5, root_id int64 6""",
    "AliasEntryProto": """
        output_shape_index int64* 1, parameter_number int64 2, parameter_shape_index int64* 3,
        kind int32 4""",
    "HloInputOutputAliasProto": "entries AliasEntryProto* 1",
    "BufferDonorEntryProto": "parameter_number int64 1, parameter_shape_index int64* 2",
    "HloBufferDonorProto": "entries BufferDonorEntryProto* 1",
    "FileLocation": "file_name_id int32 1, function_name_id int32 2, line int32 3, column int32 4",
    "StackFrame": "file_location_id int32 1, parent_frame_id int32 2",
    "StackFrameIndexProto": """
        file_names bytes* 1, function_names bytes* 2, file_locations FileLocation* 3,
        stack_frames StackFrame* 4""",
    # Of fields that hlo/device_groups.py reads; instructions keep them as they are.
    "ReplicaGroup": "replica_ids int64* 1",
    "CollectiveDeviceListProto": "replica_groups ReplicaGroup* 1",
    "IotaReplicaGroupListProto": """
        num_replica_groups int64 1, num_devices_per_group int64 2,
        iota_reshape_dims int64* 3, iota_transpose_perm int32* 4""",
    "MeshAxis": "name bytes 1, size int64 2",
    "MeshProto": "axes MeshAxis* 1, device_ids int64* 2",
    "SubAxis": "pre_size int64 1, size int64 2",
    "AxisRefProto": "mesh_axis_index int64 1, sub_axis_info SubAxis 2",
    "MeshAxesReplicaGroupListProto": "mesh MeshProto 1, axes AxisRefProto* 2",
    # A map of proto3 on the wire: its entries.
    "HloScheduleProto": "sequences ScheduledComputation* 1",
    "ScheduledComputation": "computation_id int64 1, sequence InstructionSequence 2",
    "InstructionSequence": "instruction_ids int64* 1",
    "HloModuleProto": """
        name bytes 1, entry_computation_name bytes 2, computations HloComputationProto* 3,
        host_program_shape ProgramShapeProto 4, id int64 5, entry_computation_id int64 6,
        schedule HloScheduleProto 7, input_output_alias HloInputOutputAliasProto 8,
        stack_frame_index StackFrameIndexProto 17, buffer_donor HloBufferDonorProto 18""",
    "HloProto": "hlo_module HloModuleProto 1",
    "StringsEntry": "key bytes 1, value bytes 2",
    "FrontendAttributes": "map StringsEntry* 1",
    "DebugOptions": "xla_gpu_experimental_cost_model_gemm_tiling_options StringsEntry* 474",
    "ExecutableBuildOptionsProto": "debug_options DebugOptions 3",
    "CompileOptionsProto": "executable_build_options ExecutableBuildOptionsProto 3",
}

# xla.PrimitiveType; the names are those of HLO text.
ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1",
    31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "buffer",
}  # fmt: skip


def _build_messages() -> dict[str, Any]:
    """The message classes, in a pool of our own: XLA's may be loaded in the same process."""
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="astitch_hlo.proto", package="astitch", syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for spec in fields.split(","):
            name, kind, number = spec.split()
            field = message.field.add(name=name, number=int(number))
            field.label = (
                field_proto.LABEL_REPEATED if kind.endswith("*") else field_proto.LABEL_OPTIONAL
            )
            kind = kind.rstrip("*")
            if kind[0].isupper():
                field.type, field.type_name = field_proto.TYPE_MESSAGE, f".astitch.{kind}"
            else:
                field.type = getattr(field_proto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        m: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"astitch.{m}"))
        for m in _MESSAGES
    }


_CLASSES = _build_messages()
HloModuleProto = _CLASSES["HloModuleProto"]
HloProto = _CLASSES["HloProto"]
HloComputationProto = _CLASSES["HloComputationProto"]
HloInstructionProto = _CLASSES["HloInstructionProto"]
ShapeProto = _CLASSES["ShapeProto"]
LiteralProto = _CLASSES["LiteralProto"]
CompileOptionsProto = _CLASSES["CompileOptionsProto"]
CollectiveDeviceListProto = _CLASSES["CollectiveDeviceListProto"]
IotaReplicaGroupListProto = _CLASSES["IotaReplicaGroupListProto"]
MeshAxesReplicaGroupListProto = _CLASSES["MeshAxesReplicaGroupListProto"]


def decode(text: bytes) -> str:
    """A string field as text; bytes that are not UTF-8 become marks."""
    return text.decode(errors="replace")


def sort_maps(module: Any) -> None:
    """Brings the entries of each instruction's map into one order: on the wire they have none.

    XLA writes them in another order in each process, and a module is looked for by its bytes.
    """
    for computation in module.computations:
        for instruction in computation.instructions:
            if len(instruction.frontend_attributes.map) > 1:
                instruction.frontend_attributes.map.sort(key=lambda entry: entry.key)


def name_of_module(data: bytes | str) -> str:
    """The name of a serialized HloModuleProto or of HLO text, as `jit_step`; the empty string where there is none."""
    if isinstance(data, str):
        found = re.search(r"^HloModule\s+([^\s,]+)", data, re.MULTILINE)
        return found[1] if found else ""
    try:
        return decode(HloModuleProto.FromString(data).name)
    except DecodeError:
        return ""
