"""Trains an Equinox Transformer block through astitch: python examples/equinox_train.py"""

import astitch

astitch.enable()

import equinox as eqx
import jax
import optax


class Block(eqx.Module):
    """Attention and a perceptron over a sequence [time, 64], each with a residual and a LayerNorm."""

    attention: eqx.nn.MultiheadAttention
    perceptron: eqx.nn.MLP
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(4, 64, key=first)
        self.perceptron = eqx.nn.MLP(64, 64, 256, 1, jax.nn.gelu, key=second)
        self.norms = eqx.nn.LayerNorm(64), eqx.nn.LayerNorm(64)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.vmap(self.norms[0])(x + self.attention(x, x, x))
        return jax.vmap(self.norms[1])(x + jax.vmap(self.perceptron)(x))


optimizer = optax.adamw(1e-3)


def loss_fn(model: Block, x: jax.Array, y: jax.Array) -> jax.Array:
    return ((jax.vmap(model)(x) - y) ** 2).mean()


@eqx.filter_jit
def train_step(model: Block, state: optax.OptState, x: jax.Array, y: jax.Array) -> tuple:
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y)
    updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


def main(steps: int = 20) -> list[float]:
    x, y = jax.random.normal(jax.random.key(0), (2, 32, 128, 64))
    model, losses = Block(jax.random.key(1)), []
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    for _ in range(steps):
        model, state, loss = train_step(model, state, x, y)
        losses.append(float(loss))
    print("loss", losses[-1])
    print(astitch.report())
    return losses


if __name__ == "__main__":
    main()
