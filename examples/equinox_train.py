"""Trains an Equinox perceptron through astitch: python examples/equinox_train.py"""

import astitch

astitch.enable()

import equinox as eqx
import jax
import optax

optimizer = optax.adamw(1e-3)


@eqx.filter_jit
def train_step(model: eqx.Module, state: optax.OptState, x: jax.Array, y: jax.Array) -> tuple:
    def loss_fn(model: eqx.Module) -> jax.Array:
        return ((jax.vmap(model)(x) - y) ** 2).mean()

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


def main(steps: int = 20) -> list[float]:
    x, y = jax.random.normal(jax.random.key(0), (2, 4096, 64))
    perceptron = eqx.nn.MLP(64, 64, 256, 2, jax.nn.gelu, key=jax.random.key(1))
    model, losses = eqx.nn.Sequential([perceptron, eqx.nn.LayerNorm(64)]), []
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    for _ in range(steps):
        model, state, loss = train_step(model, state, x, y)
        losses.append(float(loss))
    print(astitch.report())
    return losses


if __name__ == "__main__":
    print("loss", main()[-1])
