"""The paper's five workloads (see benchmarks.workloads) in bf16; in training the weights and Adam's means are f32."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import Entry, make_task
from benchmarks.modern_programs.program import Draw, Program
from benchmarks.workloads.adam import State, take_step
from benchmarks.workloads.layers import split_keys

DROPOUTS = {"bert": (1, {"layers": 3}), "transformer": (2, {"encoder": 3, "decoder": 5})}
"""Keys that a workload's loss wants: so many, and so many for each layer."""


def convert(tree: Any, dtype: Any) -> Any:
    """The floating-point arrays in a dtype."""

    def to(a: Any) -> Any:
        a = jnp.asarray(a)
        return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(to, tree)


def make_step(name: str, module: ModuleType) -> Callable[[State, Any], tuple[State, jax.Array]]:
    """The workload's train_step with its loss in bf16."""

    def train_step(state: State, batch: Any) -> tuple[State, jax.Array]:
        weights, statistics = state.parameters

        def loss_fn(weights: Any) -> tuple[jax.Array, Any]:
            low = convert(weights, jnp.bfloat16)
            if name in DROPOUTS:
                count, layers = DROPOUTS[name]
                count += sum(each * len(weights[part]) for part, each in layers.items())
                keys = split_keys(jax.random.fold_in(jax.random.key(0), state.step), count)
                return module.compute_loss(low, batch, keys), {}
            if statistics:
                loss, after = module.compute_loss(low, convert(statistics, jnp.bfloat16), batch)
                return loss, convert(after, jnp.float32)
            return module.compute_loss(low, batch), {}

        (loss, after), gradients = jax.value_and_grad(loss_fn, has_aux=True)(weights)
        return take_step(module.RECIPE, state, gradients, after), loss

    return train_step


def make(entry: str, draw: Draw) -> Program:
    """The sizes are the paper's, whatever the seed."""
    workload, mode = entry.split("-")
    size = draw.pick("size", ("full",), "tiny")
    made = Entry(workload, mode, size)
    task = make_task(made)
    fn = make_step(workload, made.module) if task.trains else task.fn

    def arguments() -> tuple[Any, ...]:
        first = task.first if task.trains else convert(task.first, jnp.bfloat16)
        return jax.tree.map(jnp.asarray, first), convert(task.batch, jnp.bfloat16)

    return Program(fn, arguments, int(task.trains)).described({"size": size})
