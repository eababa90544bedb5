"""Trains a plain JAX perceptron with Optax through astitch: python examples/optax_train.py"""

import astitch

astitch.enable()

import jax
import jax.numpy as jnp
import optax

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def make_params(key: jax.Array) -> dict[str, jax.Array]:
    wide, narrow = jax.random.normal(key, (2, 256, 1024)) / 16
    return {"wide": wide, "narrow": narrow.T / 2, "gain": jnp.ones(256), "bias": jnp.zeros(256)}


def predict(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A perceptron over rows of 256 numbers, with a residual and a LayerNorm."""
    x += jax.nn.gelu(x @ params["wide"]) @ params["narrow"]
    return jax.nn.standardize(x) * params["gain"] + params["bias"]


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x), y).mean()


@jax.jit
def train_step(params: dict, state: optax.OptState, x: jax.Array, y: jax.Array) -> tuple:
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def main(steps: int = 20) -> list[float]:
    x = jax.random.normal(jax.random.key(0), (1024, 256))
    y, params, losses = jnp.arange(1024) % 256, make_params(jax.random.key(1)), []
    state = optimizer.init(params)
    for _ in range(steps):
        params, state, loss = train_step(params, state, x, y)
        losses.append(float(loss))
    print("loss", losses[-1])
    print(astitch.report())
    return losses


if __name__ == "__main__":
    main()
