"""Trains a plain JAX perceptron with Optax through astitch: python examples/optax_train.py"""

import astitch

astitch.enable()

import jax
import optax

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    x += jax.nn.gelu(x @ params["wide"]) @ params["narrow"]
    return optax.softmax_cross_entropy_with_integer_labels(jax.nn.standardize(x), y).mean()


@jax.jit
def train_step(params: dict, state: optax.OptState, x: jax.Array, y: jax.Array) -> tuple:
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def main(steps: int = 20) -> list[float]:
    x, wide, narrow = jax.random.normal(jax.random.key(0), (3, 1024, 256))
    y, params = jax.numpy.arange(1024) % 256, {"wide": wide.T / 16, "narrow": narrow / 32}
    losses, state = [], optimizer.init(params)
    for _ in range(steps):
        params, state, loss = train_step(params, state, x, y)
        losses.append(float(loss))
    print(astitch.report())
    return losses


if __name__ == "__main__":
    print("loss", main()[-1])
