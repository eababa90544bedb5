"""Attention as XLA calls cuDNN's: takes a node, hands on the nodes of HLO that compute it.

The formats are those of XLA's custom calls (xla/service/gpu/transforms/cudnn_custom_call_compiler.cc) and JAX's
lowering (jax/_src/cudnn/fused_attention_stablehlo.py).  Operands lie in any order of dimensions, which the call's
dimension numbers name; results are [batch, heads, positions, features] in any layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from astitch.errors import IllegalProduct
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    CustomCallAttrs,
    DType,
    GetTupleElementAttrs,
    Node,
    Order,
    TransposeAttrs,
    TupleType,
)

FORWARD = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax")
GRADIENT = ("__cudnn$fmhaSoftmaxBackward", "__cudnn$fmhaScaleBiasSoftmaxBackward")
"""The targets of the custom calls, without a bias and with one."""

LEAST_OF_GRADIENT = 6
"""The operands of the gradient without a bias."""

_RETURNS_STATUS = 2  # the custom call's API version
_WORKSPACE = ArrayType(DType.U8, (0,))  # XLA writes its size
_SCORES: Order = (0, 1, 2, 3)


def render_attention(node: Node, operands: Sequence[ArrayType]) -> tuple[list[Node], list[str]]:
    """(nodes, the names of the results in order).

    node: attention or attention-gradient.  operands: the types of its operands.
    """
    a = node.attrs
    if not isinstance(a, AttentionAttrs) or not isinstance(node.type, TupleType):
        raise IllegalProduct(f"{node} is no attention")
    places = list(range(len(operands)))
    if node.op == "attention":
        target, orders = FORWARD[len(operands) - 3], [a.q]
        numbers = _forward_numbers(a)
    else:
        target, orders = GRADIENT[len(operands) - LEAST_OF_GRADIENT], [a.q, a.k, a.v]
        numbers = _gradient_numbers(a)
        places[5:] = reversed(places[5:])  # the bias stands in front of the result
    given = [node.operands[p] for p in places]
    operands = [operands[p] for p in places]
    types = list(node.type.elements)
    results = [
        ArrayType(t.dtype, tuple(t.shape[d] for d in order))
        for t, order in zip(types, orders, strict=False)
    ] + types[len(orders) :]
    # Each lies as the graph wants it, so that the transpose behind it moves nothing.
    turns = [_invert(order) for order in orders]
    call = Node(
        f"{node.name}.call",
        "custom-call",
        TupleType((*results, _WORKSPACE)),
        tuple(given),
        CustomCallAttrs(
            target,
            json.dumps(_write_config(a, operands, numbers)).encode(),
            _RETURNS_STATUS,
            operand_layouts=tuple(_row_major(t.rank) for t in operands),
            result_layouts=(
                *(_layout_of(order) for order in orders),
                *(_row_major(t.rank) for t in types[len(orders) :]),
                _row_major(1),
            ),
        ),
        op_name=node.op_name,
        source=node.source,
    )
    nodes, names = [call], []
    for index, (result, wanted) in enumerate(zip(results, types, strict=True)):
        part = Node(
            f"{node.name}.{index}",
            "get-tuple-element",
            result,
            (call.name,),
            GetTupleElementAttrs(index),
        )
        nodes.append(part)
        if index < len(turns) and turns[index] != (0, 1, 2, 3):
            turned = Node(
                f"{part.name}.turned",
                "transpose",
                wanted,
                (part.name,),
                TransposeAttrs(turns[index]),
            )
            nodes.append(turned)
        names.append(nodes[-1].name)
    return nodes, names


def _invert(order: Order) -> tuple[int, ...]:
    return tuple(int(d) for d in np.argsort(order))


def _row_major(rank: int) -> tuple[int, ...]:
    return tuple(reversed(range(rank)))


def _layout_of(order: Order) -> tuple[int, ...]:
    """The layout of [batch, heads, positions, features] that lies as an array of this order does."""
    return tuple(reversed(_invert(order)))


def _numbers(
    left: tuple[Sequence[int], int], right: tuple[Sequence[int], int]
) -> dict[str, list[str]]:
    """Of a product: (batch dimensions, contracted dimension) of each side."""
    found: dict[str, list[str]] = {}
    for side, (batch, contracted) in (("lhs", left), ("rhs", right)):
        found[f"{side}_contracting_dimensions"] = [str(contracted)]
        found[f"{side}_batch_dimensions"] = [str(d) for d in batch]
    return found


def _side(order: Order, contracted: int) -> tuple[Sequence[int], int]:
    return order[:2], order[contracted]


def _forward_numbers(a: AttentionAttrs) -> dict[str, Any]:
    return {
        "bmm1_dot_dimension_numbers": _numbers(_side(a.q, 3), _side(a.k, 3)),
        "bmm2_dot_dimension_numbers": _numbers(_side(_SCORES, 3), _side(a.v, 2)),
    }


def _gradient_numbers(a: AttentionAttrs) -> dict[str, Any]:
    """XLA reads from the right sides how q, k, v and the gradient lie.  It takes o to lie as its gradient does."""
    return {
        "bmm1_grad_gemm1_dot_dimension_numbers": _numbers(_side(_SCORES, 2), _side(a.q, 2)),
        "bmm1_grad_gemm2_dot_dimension_numbers": _numbers(_side(_SCORES, 3), _side(a.k, 2)),
        "bmm2_grad_gemm1_dot_dimension_numbers": _numbers(_side(_SCORES, 2), _side(a.q, 2)),
        "bmm2_grad_gemm2_dot_dimension_numbers": _numbers(_side(a.q, 3), _side(a.v, 3)),
    }


def _write_config(
    a: AttentionAttrs, operands: Sequence[ArrayType], numbers: dict[str, Any]
) -> dict[str, Any]:
    q, k = operands[:2]
    scores = (*(q.shape[d] for d in a.q[:3]), k.shape[a.k[2]])
    return {
        "operation_queue_id": "0",
        "cudnn_fmha_backend_config": {
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": True,
                "workspace_size": "0",
            },
            "fmha_scale": a.scale,
            "dropout_rate": 0.0,
            "intermediate_tensor_shape": {
                "element_type": q.dtype.value.upper(),
                "dimensions": [str(n) for n in scores],
                "layout": {"minor_to_major": ["3", "2", "1", "0"]},
                "is_dynamic_dimension": [False] * 4,
            },
            "seed": "42",
            "is_flash_attention": True,
            "mask_type": "CAUSAL" if a.causal else "NO_MASK",
            "sliding_window_length": a.window,
            "max_seg_per_batch": 1,
            "is_paged_attention": False,
            **numbers,
        },
    }
