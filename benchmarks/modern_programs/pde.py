"""Solvers of partial differential equations in plain JAX: shallow water by Runge-Kutta steps, pressure by multigrid, a
flow by lattice Boltzmann steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.modern_programs.program import EXACT, F32, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    side: int
    steps: int
    cells: int
    precision: Precision


def shift(x: jax.Array, by: int, axis: int) -> jax.Array:
    return jnp.roll(x, -by, axis)


# ---- shallow water on a torus, Rusanov fluxes, third-order Runge-Kutta ----------------------------------------------


def find_flux(q: jax.Array, axis: int) -> jax.Array:
    """q: height and two momenta, [3, y, x].  Through the right faces of the cells, by minmod slopes."""
    along = axis + 1
    ahead, behind = shift(q, 1, along) - q, q - shift(q, -1, along)
    same = (jnp.sign(ahead) + jnp.sign(behind)) / 2
    slope = same * jnp.minimum(jnp.abs(ahead), jnp.abs(behind))
    left, right = q + slope / 2, shift(q - slope / 2, 1, along)

    def carry(q: jax.Array) -> tuple[jax.Array, jax.Array]:
        height = jnp.maximum(q[0], 1e-3)
        speed = q[1 + axis] / height
        flux = q * speed
        flux = flux.at[1 + axis].add(0.5 * 9.81 * height**2)
        return flux, jnp.abs(speed) + jnp.sqrt(9.81 * height)

    (left_flux, left_speed), (right_flux, right_speed) = carry(left), carry(right)
    fastest = jnp.maximum(left_speed, right_speed)
    return 0.5 * (left_flux + right_flux) - 0.5 * fastest * (right - left)


def change(q: jax.Array, spacing: float) -> jax.Array:
    across, along = find_flux(q, 1), find_flux(q, 0)
    return -((across - shift(across, -1, 2)) + (along - shift(along, -1, 1))) / spacing


def make_water(c: Config) -> Program:
    spacing = 1.0 / c.side
    dtype = c.precision.compute

    def simulate(q: jax.Array) -> Any:
        def turn(q: jax.Array, _: None) -> Any:
            height = jnp.maximum(q[0], 1e-3)
            speed = jnp.abs(q[1:] / height).max() + jnp.sqrt(9.81 * height).max()
            dt = 0.3 * spacing / speed
            one = q + dt * change(q, spacing)
            two = 0.75 * q + 0.25 * (one + dt * change(one, spacing))
            q = q / 3 + 2 / 3 * (two + dt * change(two, spacing))
            return q, (dt, q[0].sum())

        return jax.lax.scan(turn, q, None, length=c.steps)

    def arguments() -> tuple[Any, ...]:
        places = (jnp.arange(c.side, dtype=dtype) + 0.5) * spacing
        y, x = jnp.meshgrid(places, places, indexing="ij")
        height = 1 + 0.5 * jnp.exp(-100 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
        return (jnp.stack([height, 0.1 * height, jnp.zeros_like(height)]),)

    return Program(simulate, arguments, carried=1)


# ---- a Poisson equation by multigrid cycles, until the residual is small ---------------------------------------------


def apply_laplacian(u: jax.Array) -> jax.Array:
    padded = jnp.pad(u, 1)
    near = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return (near - 4 * u) * u.shape[0] ** 2


def smooth(u: jax.Array, wanted: jax.Array, sweeps: int) -> jax.Array:
    for _ in range(sweeps):
        u = u + 0.8 * (apply_laplacian(u) - wanted) / (4 * u.shape[0] ** 2)
    return u


def run_cycle(u: jax.Array, wanted: jax.Array) -> jax.Array:
    side = u.shape[0]
    u = smooth(u, wanted, 2)
    if side > 16:
        residual = wanted - apply_laplacian(u)
        coarse = residual.reshape(side // 2, 2, side // 2, 2).mean((1, 3))
        error = run_cycle(jnp.zeros_like(coarse), coarse)
        u = u + jax.image.resize(error, u.shape, "linear")
    return smooth(u, wanted, 2)


def make_poisson(c: Config) -> Program:
    def solve(u: jax.Array, wanted: jax.Array) -> Any:
        def unfinished(state: Any) -> jax.Array:
            _, residual, count = state
            return (residual > 1e-4) & (count < c.steps)

        def turn(state: Any) -> Any:
            u, _, count = state
            u = run_cycle(u, wanted)
            residual = jnp.linalg.norm(wanted - apply_laplacian(u)) / jnp.linalg.norm(wanted)
            return u, residual, count + 1

        start = u, jnp.asarray(jnp.inf, wanted.dtype), jnp.asarray(0, jnp.int32)
        return jax.lax.while_loop(unfinished, turn, start)

    def arguments() -> tuple[Any, ...]:
        shape = (c.side, c.side)
        wanted = jax.random.normal(jax.random.key(1), shape, c.precision.compute)
        return jnp.zeros(shape, c.precision.compute), wanted

    return Program(solve, arguments, carried=1)


# ---- a flow around a ball, lattice Boltzmann in 19 directions, walls by bounce-back ---------------------------------

DIRECTIONS = [c for c in product((-1, 0, 1), repeat=3) if sum(map(abs, c)) <= 2]
WEIGHTS = [(1 / 3, 1 / 18, 1 / 36)[sum(map(abs, c))] for c in DIRECTIONS]
UNROLLED = 4
"""Steps in one call."""


def find_equilibrium(density: Any, speed: Any) -> list[Any]:
    """density: [z, y, x].  speed: the three components."""
    square = 1.5 * sum(u * u for u in speed)
    found = []
    for weight, c in zip(WEIGHTS, DIRECTIONS, strict=True):
        along = 3 * sum(k * u for k, u in zip(c, speed, strict=True) if k)
        found.append(weight * density * (1 + along + 0.5 * along * along - square))
    return found


def stream_and_collide(f: jax.Array, walls: jax.Array) -> jax.Array:
    """f: [direction, z, y, x].  walls: pred[z, y, x]."""
    moved = [jnp.roll(x, c, (0, 1, 2)) for x, c in zip(f, DIRECTIONS, strict=True)]
    density = sum(moved)
    speed = [
        sum(c[axis] * x for c, x in zip(DIRECTIONS, moved, strict=True) if c[axis]) / density
        for axis in range(3)
    ]
    wanted = find_equilibrium(density, speed)
    relaxed = [x - (x - e) / 0.6 for x, e in zip(moved, wanted, strict=True)]
    bounced = moved[::-1]  # the opposite directions
    return jnp.stack([jnp.where(walls, b, x) for b, x in zip(bounced, relaxed, strict=True)])


def make_lattice(c: Config) -> Program:
    def step(f: jax.Array, walls: jax.Array) -> Any:
        for _ in range(UNROLLED):
            f = stream_and_collide(f, walls)
        return (f,)

    def arguments() -> tuple[Any, ...]:
        shape = (c.cells,) * 3
        place = (jnp.arange(c.cells) - c.cells / 2) / c.cells
        z, y, x = jnp.meshgrid(place, place, place, indexing="ij")
        speed = [0.05 * jnp.cos(6 * y), 0.02 * jnp.sin(6 * z), 0.1 + 0 * x]
        f = jnp.stack(find_equilibrium(jnp.ones(shape), speed)).astype(c.precision.compute)
        return f, z * z + y * y + x * x < 0.04

    return Program(step, arguments, carried=1)


def make(entry: str, draw: Draw, precision: Precision = F32) -> Program:
    c = Config(
        side=draw.pick("side", (512, 1024, 256), 32),
        steps=draw.pick("steps", (50, 40), 4),
        cells=draw.pick("cells", (128, 160, 96), 8),
        precision=precision,
    )
    makers = {"water": make_water, "poisson": make_poisson, "lattice": make_lattice}
    program = makers[entry](c)
    about = {"side": c.side, "steps": c.steps}
    if entry == "lattice":
        about = {"cells": c.cells, "steps": UNROLLED}
    # How many cycles a solver takes depends on the rounding.
    exact = (lambda: make(entry, draw, EXACT)) if entry != "poisson" else None
    return program.described(about, exact)
