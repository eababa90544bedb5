"""Trains a Flax Linen Transformer block through astitch: python examples/flax_linen.py"""

import astitch

astitch.enable()

import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(num_heads=4)(x))
        return nn.LayerNorm()(x + nn.Dense(64)(nn.gelu(nn.Dense(256)(x))))


@jax.jit
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_fn(params: dict) -> jax.Array:
        return ((state.apply_fn(params, x) - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def main(steps: int = 20) -> list[float]:
    x, y = jax.random.normal(jax.random.key(0), (2, 32, 128, 64))
    params, losses = Block().init(jax.random.key(1), x), []
    state = TrainState.create(apply_fn=Block().apply, params=params, tx=optax.adamw(1e-3))
    for _ in range(steps):
        state, loss = train_step(state, x, y)
        losses.append(float(loss))
    print(astitch.report())
    return losses


if __name__ == "__main__":
    print("loss", main()[-1])
