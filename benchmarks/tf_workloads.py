"""BERT and DIEN written in TensorFlow: the models of benchmarks/workloads, with the same weights and batches.

Takes a Size and the NumPy weights of the JAX version, hands on modules with `infer` and `train_step`, functions that
TensorFlow must compile.  Training is Adam over all weights, by hand, so that the step is one function.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from benchmarks.workloads import bert, dien
from benchmarks.workloads.layers import MASKED

RATE, BETA1, BETA2, ADAM_EPSILON = 1e-3, 0.9, 0.999, 1e-8


class Model(tf.Module):  # type: ignore[misc]
    """Weights as variables, Adam's moments beside them."""

    def __init__(self, weights: Any, statistics: Any) -> None:
        super().__init__()
        self.weights = tf.nest.map_structure(tf.Variable, weights)
        self.statistics = tf.nest.map_structure(
            lambda value: tf.Variable(value, trainable=False), statistics
        )
        self.trained = tf.nest.flatten(self.weights)
        self.moments = [
            tuple(tf.Variable(tf.zeros_like(v), trainable=False) for _ in range(2))
            for v in self.trained
        ]
        # TensorFlow has variables of s32 on the host only, which a function on a GPU cannot have compiled.
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def compute_loss(self, batch: Any) -> Any:
        """The loss of a batch; statistics are updated."""
        raise NotImplementedError

    @tf.function(jit_compile=True)
    def train_step(self, batch: Any) -> Any:
        """One step of Adam; gives the loss."""
        with tf.GradientTape() as tape:
            loss = self.compute_loss(batch)
        gradients = tape.gradient(loss, self.trained)
        self.steps.assign_add(1)
        time = tf.cast(self.steps, tf.float32)
        unbiased = 1 - BETA1**time, 1 - BETA2**time
        for variable, gradient, (mean, square) in zip(
            self.trained, gradients, self.moments, strict=True
        ):
            gradient = tf.convert_to_tensor(gradient)
            mean.assign(BETA1 * mean + (1 - BETA1) * gradient)
            square.assign(BETA2 * square + (1 - BETA2) * gradient * gradient)
            root = tf.sqrt(square / unbiased[1]) + ADAM_EPSILON
            variable.assign_sub(RATE * (mean / unbiased[0]) / root)
        return loss


def apply_dense(weights: Any, x: Any) -> Any:
    """[..., inputs] -> [..., outputs]."""
    return tf.matmul(x, weights["kernel"]) + weights["bias"]


def normalise_layer(weights: Any, x: Any, epsilon: float) -> Any:
    """LayerNorm over the last dimension."""
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def mask_lengths(lengths: Any, most: int) -> Any:
    """f32[batch, most]: 1 where a place is within its row's length, else 0."""
    return tf.cast(tf.range(most) < lengths[:, None], tf.float32)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean over the labels."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


# ---- BERT --------------------------------------------------------------------------------------------------------


class Bert(Model):
    """Masked words and next sentences."""

    def __init__(self, key: int, size: bert.Size) -> None:
        super().__init__(*bert.make_parameters(key, size))

    @tf.function(jit_compile=True)
    def infer(self, batch: Any) -> Any:
        """(hidden states [batch, length, width], next-sentence log-probabilities [batch, 2])."""
        hidden = self.encode(batch, None)
        return hidden, tf.nn.log_softmax(self.judge_next_sentence(hidden))

    def encode(self, batch: Any, seed: Any) -> Any:
        """The hidden states; seed: of dropout, None: nothing is dropped."""
        weights, length = self.weights, batch["words"].shape[1]
        count = iter(range(1000))

        def drop(x: Any) -> Any:
            if seed is None:
                return x
            own = tf.stack([seed, next(count)])
            return tf.nn.experimental.stateless_dropout(x, bert.DROPOUT, own, rng_alg="philox")

        x = tf.gather(weights["words"], batch["words"]) + weights["positions"][:length]
        x += tf.one_hot(batch["segments"], 2) @ weights["segments"]
        x = drop(normalise_layer(weights["norm"], x, bert.EPSILON))
        mask = (1.0 - mask_lengths(batch["lengths"], length))[:, None, None, :] * MASKED
        for layer in weights["layers"]:
            y = drop(attend(layer["attention"], x, mask, drop))
            x = normalise_layer(layer["attention_norm"], x + y, bert.EPSILON)
            y = tf.nn.gelu(apply_dense(layer["inner"], x), approximate=True)
            y = drop(apply_dense(layer["outer"], y))
            x = normalise_layer(layer["outer_norm"], x + y, bert.EPSILON)
        return x

    def judge_next_sentence(self, hidden: Any) -> Any:
        """Logits [batch, 2], from the hidden state of the first place."""
        pooled = tf.tanh(apply_dense(self.weights["pool"], hidden[:, 0]))
        return apply_dense(self.weights["next_sentence"], pooled)

    def compute_loss(self, batch: Any) -> Any:
        hidden = self.encode(batch, self.steps)
        at_masked = tf.gather(hidden, batch["masked"], batch_dims=1)
        x = tf.nn.gelu(apply_dense(self.weights["transform"], at_masked), approximate=True)
        x = normalise_layer(self.weights["transform_norm"], x, bert.EPSILON)
        bias = self.weights["words_bias"]["bias"]
        logits = tf.matmul(x, self.weights["words"], transpose_b=True) + bias
        judged = self.judge_next_sentence(hidden)
        return cross_entropy(logits, batch["labels"]) + cross_entropy(judged, batch["is_next"])


def attend(weights: Any, x: Any, mask: Any, drop: Any) -> Any:
    """Self-attention of x [batch, n, width]."""

    def project(name: str) -> Any:
        return tf.einsum("bnd,dhk->bnhk", x, weights[name]["kernel"]) + weights[name]["bias"]

    query, key, value = project("query"), project("key"), project("value")
    energies = tf.einsum("bnhk,bmhk->bhnm", query, key) / math.sqrt(query.shape[-1])
    probabilities = drop(tf.nn.softmax(energies + mask))
    mixed = tf.einsum("bhnm,bmhk->bnhk", probabilities, value)
    output = weights["output"]
    return tf.einsum("bnhk,hkd->bnd", mixed, output["kernel"]) + output["bias"]


# ---- DIEN --------------------------------------------------------------------------------------------------------


class Dien(Model):
    """Clicks from histories, with the auxiliary loss."""

    def __init__(self, key: int, size: dien.Size) -> None:
        super().__init__(*dien.make_parameters(key, size))

    @tf.function(jit_compile=True)
    def infer(self, batch: Any) -> Any:
        """The probabilities [batch, 2] of no click and of a click, by the running statistics."""
        return tf.nn.softmax(self.compute_logits(batch, training=False)[0])

    def embed_items(self, items: Any, categories: Any) -> Any:
        """[..., width]."""
        tables = self.weights
        parts = [tf.gather(tables["items"], items), tf.gather(tables["categories"], categories)]
        return tf.concat(parts, -1)

    def choose_moments(self, x: Any, running: Any, training: bool) -> Any:
        """The moments of the batch, which move the running ones; or those."""
        if not training:
            return running
        found = tf.nn.moments(x, list(range(len(x.shape) - 1)))
        for variable, value in zip(running, found, strict=True):
            variable.assign(dien.MOMENTUM * variable + (1 - dien.MOMENTUM) * value)
        return found

    def compute_logits(self, batch: Any, training: bool) -> Any:
        """(logits [batch, 2], interest states [batch, time, width])."""
        weights = self.weights
        history = self.embed_items(batch["items"], batch["categories"])
        candidate = self.embed_items(batch["item"], batch["category"])
        within = mask_lengths(batch["lengths"], history.shape[1])
        turned = tf.transpose(within)
        interest = run_gru(weights["interest"], tf.transpose(history, [1, 0, 2]), turned, None)
        states = tf.transpose(interest, [1, 0, 2])
        attention = self.weigh_history(candidate, states, within)
        final = run_gru(weights["evolution"], interest, turned, tf.transpose(attention))[-1]
        total = tf.reduce_sum(history * within[:, :, None], 1)
        user = tf.gather(weights["users"], batch["user"])
        x = tf.concat([user, candidate, total, candidate * total, final], -1)
        mean, variance = self.choose_moments(x, self.statistics["top"], training)
        norm = weights["top_norm"]
        x = (x - mean) * tf.math.rsqrt(variance + dien.EPSILON) * norm["gamma"] + norm["beta"]
        first, second, last = weights["top"]
        for layer, slope, running in zip(
            (first, second), weights["slopes"], self.statistics["dice"], strict=True
        ):
            x = apply_dense(layer, x)
            mean, variance = self.choose_moments(x, running, training)
            chance = tf.sigmoid((x - mean) * tf.math.rsqrt(variance + dien.EPSILON))
            x = chance * x + (1.0 - chance) * slope * x
        return apply_dense(last, x), states

    def weigh_history(self, candidate: Any, states: Any, within: Any) -> Any:
        """Attention [batch, time] of the candidate to the states."""
        query = apply_dense(self.weights["query"], candidate)
        query = tf.where(query > 0, query, self.weights["query_slope"] * query)
        queries = tf.broadcast_to(query[:, None], states.shape)
        x = tf.concat([queries, states, queries - states, queries * states], -1)
        first, second, last = self.weights["attention"]
        x = tf.sigmoid(apply_dense(second, tf.sigmoid(apply_dense(first, x))))
        return tf.nn.softmax(apply_dense(last, x)[..., 0] + (1.0 - within) * MASKED)

    def judge_next(self, states: Any, items: Any) -> Any:
        """Logits [batch, time] that an item follows a state."""
        first, second, last = self.weights["auxiliary"]
        x = tf.sigmoid(apply_dense(first, tf.concat([states, items], -1)))
        return apply_dense(last, tf.sigmoid(apply_dense(second, x)))[..., 0]

    def compute_loss(self, batch: Any) -> Any:
        logits, states = self.compute_logits(batch, training=True)
        click = cross_entropy(logits, batch["clicked"])
        clicked = self.embed_items(batch["items"], batch["categories"])[:, 1:]
        skipped = self.embed_items(batch["skipped_items"], batch["skipped_categories"])[:, 1:]
        within = mask_lengths(batch["lengths"], states.shape[1])[:, 1:]
        yes = tf.math.log_sigmoid(self.judge_next(states[:, :-1], clicked))
        no = tf.math.log_sigmoid(-self.judge_next(states[:, :-1], skipped))
        return click - tf.reduce_sum((yes + no) * within) / tf.reduce_sum(within)


def run_gru(weights: Any, x: Any, within: Any, attention: Any) -> Any:
    """[time, batch, inputs] -> the states [time, batch, width]; a row keeps its state beyond its length.

    within: f32[time, batch].  attention: f32[time, batch], how far a step may change the state (AUGRU), or None.
    """
    # Read once: what a loop reads in each turn its gradient would keep for each.
    weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
    time, batch, _ = x.shape
    width = weights["candidate"]["bias"].shape[0]
    states = tf.TensorArray(tf.float32, size=time, element_shape=[batch, width])

    def step(turn: Any, state: Any, states: Any) -> Any:
        now = x[turn]
        gates = tf.sigmoid(apply_dense(weights["gates"], tf.concat([now, state], -1)))
        reset, update = tf.split(gates, 2, -1)
        candidate = apply_dense(weights["candidate"], tf.concat([now, reset * state], -1))
        if attention is not None:
            update = attention[turn][:, None] * update
        new = (1.0 - update) * state + update * tf.tanh(candidate)
        state = tf.where(within[turn][:, None] > 0, new, state)
        return turn + 1, state, states.write(turn, state)

    _, _, states = tf.while_loop(
        lambda turn, *_: turn < time,
        step,
        (tf.constant(0), tf.zeros([batch, width]), states),
        maximum_iterations=time,
    )
    return states.stack()


MODELS = {"bert": (Bert, bert), "dien": (Dien, dien)}
"""Name -> the model in TensorFlow, the module of the one in JAX."""


def make_model(name: str, size: str) -> tuple[Model, Any]:
    """A model of one of its sizes, and a batch of tensors."""
    model, module = MODELS[name]
    batch = module.make_batch(1, module.SIZES[size])
    return model(0, module.SIZES[size]), tf.nest.map_structure(tf.constant, batch)
