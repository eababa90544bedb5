"""rng-bit-generator as element-wise ops, so that kernels draw the bits where they need them and none are stored.

Takes one of its two results in a Draft, hands on the value in its place; bit for bit as random_bits.py, which tells how
the counters lie over a result.  An element computes the block that its bits are in; elements of a thread that lie in
one block share it: the CUDA compiler finds the common computation.
"""

from __future__ import annotations

import functools
import math

from astitch.graph.ir import (
    ArrayType,
    DType,
    GetTupleElementAttrs,
    IotaAttrs,
    Node,
    RngBitGeneratorAttrs,
)
from astitch.graph.random_bits import (
    PHILOX_MULTIPLIERS,
    PHILOX_ROUNDS,
    PHILOX_WEYL,
    THREEFRY_PARITY,
    THREEFRY_ROTATIONS,
    choose_threefry_axis,
)
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps

MOST_ELEMENTS = 1 << 32
"""The most elements of a result: their numbers have 32 bits."""

State = list[str]
"""The generator's words of 64 bits: u64 scalars."""


def draw_bits(node: Node, draft: Draft) -> str | None:
    """get-tuple-element(rng-bit-generator(state), i) -> the bits, or the new state, computed."""
    assert isinstance(node.attrs, GetTupleElementAttrs)
    generator = draft[node.operands[0]]
    if not isinstance(generator.attrs, RngBitGeneratorAttrs):
        return None
    assert not isinstance(generator.type, ArrayType)
    state = draft[generator.operands[0]]
    kind = generator.type.elements[1]
    if state.array.rank != 1 or kind.size >= MOST_ELEMENTS or not kind.size:
        return None
    threefry = generator.attrs.algorithm == "RNG_THREE_FRY"
    drawer = (_Threefry if threefry else _Philox)(node, draft, kind, state)
    if len(drawer.state) not in drawer.STATES:
        return None
    return drawer.next_state() if node.attrs.index == 0 else drawer.bits()


class _Drawer(DraftOps):
    """What both generators need.  kind: the type of the bits."""

    STATES: tuple[int, ...]

    def __init__(self, origin: Node, draft: Draft, kind: ArrayType, state: Node) -> None:
        super().__init__(origin, draft)
        self.kind, self.given = kind, state
        self.state = self.read_state(state)

    # -- the state --

    def read_state(self, state: Node) -> State:
        words = [self.element(state, i) for i in range(state.array.size)]
        if state.dtype.bytes == 8:
            return [self.convert(word, DType.U64) for word in words]
        halves = [self.convert(word, DType.U32) for word in words]
        return [self.join(*pair) for pair in zip(halves[::2], halves[1::2], strict=False)]

    def element(self, array: Node, number: int) -> str:
        return self.reshape(self.cut(array.name, (number,), (number + 1,)), ())

    def write_state(self, words: State) -> str:
        """An array like the one given."""
        dtype = self.given.dtype
        if dtype.bytes == 4:
            words = [half for word in words for half in self.split(word)]
        parts = [self.reshape(self.convert(word, dtype), (1,)) for word in words]
        return self.concatenate(parts, 0)

    # -- words --

    def split(self, word: str) -> tuple[str, str]:
        """u64 -> (low, high) u32."""
        shape = self.draft[word].shape
        high = self.both("shift-right-logical", word, self.splat(32, DType.U64, shape))
        return self.convert(word, DType.U32), self.convert(high, DType.U32)

    def join(self, low: str, high: str) -> str:
        """(low, high) u32 -> u64."""
        shape = self.draft[low].shape
        wide = self.convert(high, DType.U64)
        above = self.both("shift-left", wide, self.splat(32, DType.U64, shape))
        return self.both("or", self.convert(low, DType.U64), above)

    def finish(self, words: str) -> str:
        """u32 or u64 -> the type that was asked for: of a narrower one the lower bits."""
        unsigned = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}[self.kind.dtype.bytes]
        words = self.convert(words, unsigned)
        if self.kind.dtype is not unsigned:
            shape = self.draft[words].shape
            words = self.add("bitcast-convert", self.kind.dtype, shape, (words,))
        return self.reshape(words, self.kind.shape)

    # -- single ops --

    def xor(self, *words: str) -> str:
        return functools.reduce(lambda x, y: self.both("xor", x, y), words)

    def plus(self, x: str, number: int) -> str:
        return self.both("add", x, self.splat(number, self.draft[x].dtype, self.draft[x].shape))

    def select_equal(self, x: str, number: int, then: str, otherwise: str) -> str:
        limit = self.splat(number, self.draft[x].dtype, self.draft[x].shape)
        return self.select(self.compare("EQ", x, limit), then, otherwise)


class _Philox(_Drawer):
    """Philox 4x32 with 10 rounds: the words of a block one after the other."""

    STATES = (2, 3)

    def counter(self, steps: str) -> tuple[str, str]:
        """The counter so many blocks on, u64: its lower and its upper word.

        With a state of two words (JAX's rbg keys) XLA takes the key for the upper one.
        """
        shape = self.draft[steps].shape
        first = self.spread(self.state[1], shape)
        high = self.spread(self.state[2] if len(self.state) == 3 else self.state[0], shape)
        low = self.both("add", first, steps)
        over = self.convert(self.compare("LT", low, first), DType.U64)
        return low, self.both("add", high, over)

    def next_state(self) -> str:
        words = self.kind.size * (2 if self.kind.dtype.bytes == 8 else 1)
        counter = self.counter(self.splat(-(-words // 4), DType.U64, ()))
        return self.write_state([self.state[0], *counter][: len(self.state)])

    def bits(self) -> str:
        shape = (self.kind.size,)
        wide = self.kind.dtype.bytes == 8
        shift = 1 if wide else 2  # elements of a block
        number = self.add("iota", DType.U32, shape, (), IotaAttrs(0))
        block = self.both("shift-right-logical", number, self.splat(shift, DType.U32, shape))
        lane = self.both("and", number, self.splat((1 << shift) - 1, DType.U32, shape))
        a, b, c, d = self.draw(*self.counter(self.convert(block, DType.U64)))
        if wide:
            first, second = self.join(a, b), self.join(c, d)
            return self.finish(self.select_equal(lane, 0, first, second))
        last = self.select_equal(lane, 2, c, d)
        return self.finish(self.select_equal(lane, 0, a, self.select_equal(lane, 1, b, last)))

    def draw(self, low: str, high: str) -> tuple[str, str, str, str]:
        """A block for each counter."""
        shape = self.draft[low].shape
        a, b = self.split(low)
        c, d = self.split(high)
        keys = self.split(self.state[0])
        for number in range(PHILOX_ROUNDS):
            k0, k1 = (
                self.spread(self.plus(key, (number * weyl) % (1 << 32)), shape)
                for key, weyl in zip(keys, PHILOX_WEYL, strict=True)
            )
            (low0, high0), (low1, high1) = (
                self.split(
                    self.both(
                        "multiply",
                        self.convert(word, DType.U64),
                        self.splat(multiplier, DType.U64, shape),
                    )
                )
                for word, multiplier in zip((a, c), PHILOX_MULTIPLIERS, strict=True)
            )
            a, b, c, d = self.xor(high1, b, k0), low1, self.xor(high0, d, k1), low0
        return a, b, c, d


class _Threefry(_Drawer):
    """Threefry 2x32 with 20 rounds: the two words of a block lie beside each other along one dimension."""

    STATES = (2,)

    def halves(self) -> tuple[tuple[int, ...], int]:
        """The shape of the counters, and the dimension along which each stands for two elements; -1: for one."""
        if self.kind.dtype.bytes == 8:
            return self.kind.shape, -1
        full = self.kind.shape or (2,)
        axis = choose_threefry_axis(full)
        return tuple((n + 1) // 2 if d == axis else n for d, n in enumerate(full)), axis

    def next_state(self) -> str:
        shape, _ = self.halves()
        return self.write_state([self.state[0], self.plus(self.state[1], math.prod(shape))])

    def bits(self) -> str:
        half, axis = self.halves()
        shape = self.kind.shape or (1,)
        number, lane = self.splat(0, DType.U32, shape), ""
        for d, extent in enumerate(half):
            place = self.add("iota", DType.U32, shape, (), IotaAttrs(d))
            if d == axis:
                one = self.splat(1, DType.U32, shape)
                lane = self.both("and", place, one)
                place = self.both("shift-right-logical", place, one)
            scaled = self.both("multiply", number, self.splat(extent, DType.U32, shape))
            number = self.both("add", scaled, place)
        counter = self.both(
            "add", self.spread(self.state[1], shape), self.convert(number, DType.U64)
        )
        x, y = self.draw(counter)
        if axis < 0:
            return self.finish(self.join(x, y))
        return self.finish(self.select_equal(lane, 0, x, y))

    def draw(self, counter: str) -> tuple[str, str]:
        """A block for each counter."""
        shape = self.draft[counter].shape
        first, second = self.split(self.state[0])
        third = self.xor(first, second, self.splat(THREEFRY_PARITY, DType.U32, ()))
        keys = [first, second, third]
        low, high = self.split(counter)
        x = self.both("add", low, self.spread(keys[0], shape))
        y = self.both("add", high, self.spread(keys[1], shape))
        for group in range(5):
            for rotation in THREEFRY_ROTATIONS[group % 2]:
                x = self.both("add", x, y)
                left = self.both("shift-left", y, self.splat(rotation, DType.U32, shape))
                right = self.both(
                    "shift-right-logical", y, self.splat(32 - rotation, DType.U32, shape)
                )
                y = self.xor(x, self.both("or", left, right))
            x = self.both("add", x, self.spread(keys[(group + 1) % 3], shape))
            y = self.both("add", y, self.spread(self.plus(keys[(group + 2) % 3], group + 1), shape))
        return x, y
