"""Where a share of a loop keeps what its threads and blocks tell each other: shared memory and tagged words."""

from __future__ import annotations

from astitch.loops.axes import Form
from astitch.loops.cuts import Share, Slot, crossing_floats, place_slots
from astitch.loops.schedule import Moved


class Layout:
    """The memory of one share.

    slots: of rows, by Moved.  weights: by product, the offset of its matrix in shared memory.  tiles: by crossing, the
    offsets of what it keeps there.  shared_bytes: all of it.  exchanges: do blocks tell each other something?
    """

    def __init__(self, share: Share) -> None:
        self.share, self.steps, self.cut = share, share.steps, share.cut
        self.exchanges = self.cut.exchanges(self.steps)
        self.slots, self.weights, self.tiles, self.shared_bytes = self.place_shared()

    def place_shared(self) -> tuple[tuple[Slot, ...], list[int], list[tuple[int, int, int]], int]:
        """Slots of rows, offsets of the shared shares of products, of what each crossing keeps, and all bytes."""
        cut = self.cut
        slots, offset = place_slots(self.steps, cut)
        weights, tiles = [], []
        for multiply, held in zip(self.steps.products, self.share.held, strict=True):
            weights.append(offset)
            left = cut.vectors * len(multiply.left) - held
            offset += left * 16 * multiply.parts * cut.width * cut.block
        for multiply in self.steps.crossings:
            places = []
            for floats in crossing_floats(multiply, cut):
                places.append(offset)
                offset += -(-2 * floats // 4) * 16
            tiles.append((places[0], places[1], places[2]))
        return slots, weights, tiles, offset

    def shared_vectors(self, number: int) -> int:
        """Vectors of a product's matrix that a thread keeps in shared memory."""
        multiply = self.steps.products[number]
        return self.cut.vectors * len(multiply.left) - self.share.held[number]

    # ---- rows in shared memory -------------------------------------------------------------------------------------

    def slot_elements(self, moved: Moved) -> int:
        """Elements of a slot for one turn."""
        return len(moved.parts) * self.cut.rows * self.cut.stride

    def slot_start(self, number: int) -> str:
        """Where the turn's rows of a Moved begin in their slot."""
        size = self.slot_elements(self.steps.moved[number])
        return f"turn % 2 * {size}" if self.slots[number].buffers == 2 else "0"

    # ---- tagged words ----------------------------------------------------------------------------------------------

    def word_offset(self, number: int) -> int:
        """The number of a Moved's first word among the words of its group."""
        before = self.steps.moved[:number]
        return sum(2 * len(m.parts) for m in before) * self.cut.rows * self.cut.units

    @property
    def moved_words(self) -> int:
        """Tagged words of a group for rows."""
        parts = sum(2 * len(m.parts) for m in self.steps.moved)
        return parts * self.cut.rows * self.cut.units

    @property
    def collect_words(self) -> tuple[int, int]:
        """Tagged words of a group for a sum over units, in one turn: of the parts, of the sums."""
        return self.cut.sums * self.cut.members**2, self.cut.rows * self.cut.small

    @property
    def group_words(self) -> int:
        """Tagged words of a group."""
        collects = sum(m.product.form is Form.COLLECT for m in self.steps.crossings)
        words = self.moved_words + 2 * collects * sum(self.collect_words)
        return words if self.exchanges else 0

    @property
    def all_words(self) -> int:
        return self.group_words * self.cut.groups
