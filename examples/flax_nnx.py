"""Trains a Flax NNX Transformer block through astitch: python examples/flax_nnx.py"""

import astitch

astitch.enable()

import jax
import optax
from flax import nnx


class Block(nnx.Module):
    """Attention and a perceptron over sequences [batch, time, 64], each with a residual and a LayerNorm."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(64, rngs=rngs) for _ in range(2)])
        self.wide, self.narrow = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.narrow(nnx.gelu(self.wide(x))))


@nnx.jit
def train_step(model: Block, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_fn(model: Block) -> jax.Array:
        return ((model(x) - y) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def main(steps: int = 20) -> list[float]:
    x, y = jax.random.normal(jax.random.key(0), (2, 32, 128, 64))
    model = Block(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    losses = [float(train_step(model, optimizer, x, y)) for _ in range(steps)]
    print("loss", losses[-1])
    print(astitch.report())
    return losses


if __name__ == "__main__":
    main()
