"""Trains a Flax NNX perceptron through astitch: python examples/flax_nnx.py"""

import astitch

astitch.enable()

import jax
import optax
from flax import nnx


def make_model(rngs: nnx.Rngs) -> nnx.Sequential:
    layers = [nnx.LayerNorm(64, rngs=rngs), nnx.Linear(64, 256, rngs=rngs), nnx.gelu]
    return nnx.Sequential(*layers, nnx.Linear(256, 64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs))


@nnx.jit
def train_step(
    model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array
) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def main(steps: int = 20) -> list[float]:
    x, y = jax.random.normal(jax.random.key(0), (2, 4096, 64))
    model = make_model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    losses = [float(train_step(model, optimizer, x, y)) for _ in range(steps)]
    print(astitch.report())
    return losses


if __name__ == "__main__":
    print("loss", main()[-1])
