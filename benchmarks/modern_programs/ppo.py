"""PPO with the environment in lax.scan: steps of CartPole, advantages, epochs of shuffled minibatches, one jit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from benchmarks.modern_programs.program import Draw, Program


@dataclass(frozen=True)
class Config:
    environments: int
    steps: int
    epochs: int
    minibatches: int
    width: int


class Network(nn.Module):
    width: int

    @nn.compact
    def __call__(self, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
        def run(outputs: int, scale: float) -> jax.Array:
            x = seen
            for _ in range(2):
                x = nn.tanh(nn.Dense(self.width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(scale))(x)

        return run(2, 0.01), run(1, 1.0)[..., 0]


class Transition(NamedTuple):
    seen: jax.Array
    action: jax.Array
    log_share: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def reset(key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Any, Any]:
    """CartPole-v1 by Euler; a pole that fell starts anew."""
    _, speed, angle, turning = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * turning**2 * sin) / 1.1
    turned = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pushed = push - 0.05 * turned * cos / 1.1
    state = state + 0.02 * jnp.stack([speed, pushed, turning, turned])
    done = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095)
    return jnp.where(done, reset(key), state), 1.0 - done, done


def collect(c: Config, train: TrainState, states: jax.Array, key: jax.Array) -> Any:
    def turn(carry: Any, _: None) -> Any:
        states, key = carry
        key, drawn, fresh = jax.random.split(key, 3)
        logits, value = train.apply_fn(train.params, states)
        action = jax.random.categorical(drawn, logits)
        log_share = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], -1)[:, 0]
        keys = jax.random.split(fresh, c.environments)
        after, reward, done = jax.vmap(step)(states, action, keys)
        made = Transition(states, action, log_share, value, reward, done)
        return (after, key), made

    return jax.lax.scan(turn, (states, key), None, length=c.steps)


def find_advantages(rollout: Transition, last: jax.Array) -> jax.Array:
    def turn(carry: Any, t: Transition) -> Any:
        advantage, following = carry
        alive = 1.0 - t.done
        surprise = t.reward + 0.99 * following * alive - t.value
        advantage = surprise + 0.99 * 0.95 * alive * advantage
        return (advantage, t.value), advantage

    start = jnp.zeros_like(last), last
    return jax.lax.scan(turn, start, rollout, reverse=True, unroll=8)[1]


def ppo_loss(train: TrainState, params: Any, batch: Any) -> jax.Array:
    t, advantage, wanted = batch
    logits, value = train.apply_fn(params, t.seen)
    log_shares = jax.nn.log_softmax(logits)
    log_share = jnp.take_along_axis(log_shares, t.action[:, None], -1)[:, 0]
    ratio = jnp.exp(log_share - t.log_share)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    kept = t.value + jnp.clip(value - t.value, -0.2, 0.2)
    error = jnp.maximum(jnp.square(value - wanted), jnp.square(kept - wanted))
    entropy = -(jnp.exp(log_shares) * log_shares).sum(-1)
    return -gain.mean() + 0.25 * error.mean() - 0.01 * entropy.mean()


def make(entry: str, draw: Draw) -> Program:
    c = Config(
        environments=draw.pick("environments", (2048, 1024, 1536), 8),
        steps=draw.pick("steps", (128, 64), 6),
        epochs=draw.pick("epochs", (4, 2), 2),
        minibatches=draw.pick("minibatches", (4, 8), 2),
        width=draw.pick("width", (64, 128), 8),
    )
    network = Network(c.width)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def update(train: TrainState, states: jax.Array, key: jax.Array) -> Any:
        (states, key), rollout = collect(c, train, states, key)
        advantages = find_advantages(rollout, train.apply_fn(train.params, states)[1])
        count = c.environments * c.steps
        data = rollout, advantages, advantages + rollout.value
        data = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), data)

        def learn(train: TrainState, batch: Any) -> Any:
            loss, grads = jax.value_and_grad(lambda p: ppo_loss(train, p, batch))(train.params)
            return train.apply_gradients(grads=grads), loss

        def run_epoch(carry: Any, _: None) -> Any:
            train, key = carry
            key, drawn = jax.random.split(key)
            order = jax.random.permutation(drawn, count)
            shuffled = jax.tree.map(
                lambda a: a[order].reshape(c.minibatches, -1, *a.shape[1:]), data
            )
            train, losses = jax.lax.scan(learn, train, shuffled)
            return (train, key), losses

        (train, key), losses = jax.lax.scan(run_epoch, (train, key), None, length=c.epochs)
        return train, states, key, losses

    def arguments() -> tuple[Any, ...]:
        params = network.init(jax.random.key(0), jnp.zeros((1, 4)))
        train = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)
        states = jax.vmap(reset)(jax.random.split(jax.random.key(1), c.environments))
        return train, states, jax.random.PRNGKey(2)

    about = {"environments": c.environments, "steps": c.steps, "width": c.width}
    return Program(update, arguments, carried=3).described(about)
