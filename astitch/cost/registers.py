"""How many words a thread's registers hold: what is kept from wait to wait, and what is loaded in between."""

from __future__ import annotations

ALWAYS = 1 << 30


class Registers:
    """words: of kept arrays and states; born, dies: the waits between which each is needed.

    loaded: words of vectors by wait.  turn: counts the waits.  Every time only what the section at hand has used is
    looked at, since a kernel may have thousands of sections.
    """

    def __init__(self) -> None:
        self.words: dict[str, float] = {}
        self.born: dict[str, int] = {}
        self.dies: dict[str, int] = {}
        self.loaded: dict[int, float] = {}
        self.turn = 0
        self._lasting: set[str] = set()
        self._used: dict[str, None] = {}

    def keep(self, name: str, words: float) -> None:
        """Registers will hold `words` under a name."""
        self.words[name] = words
        self._used[name] = None

    def hold(self, name: str, words: float, *, always: bool) -> None:
        """Registers hold `words` from now on: until the last use of `name`, or always."""
        self.keep(name, words)
        self.born[name] = self.turn
        if always:
            self.carry(name)

    def fill(self, name: str) -> None:
        """What is kept under a name is there from now on, if not before."""
        self.born.setdefault(name, self.turn)
        self._used[name] = None

    def use(self, name: str) -> None:
        self.dies[name] = self.turn
        self._used[name] = None
        self._lasting.discard(name)

    def carry(self, name: str) -> None:
        """What is kept under a name is needed until the section ends."""
        self.dies[name] = ALWAYS
        self._used[name] = None
        self._lasting.add(name)

    def forget(self) -> None:
        """What was held for the section before is gone."""
        for name in self._lasting:
            self.dies[name] = self.turn
        self._used = dict.fromkeys(self._lasting)
        self._lasting.clear()

    def load(self, words: float) -> None:
        self.loaded[self.turn] = self.loaded.get(self.turn, 0.0) + words

    def kept_words(self, first_turn: int) -> float:
        """Most words that live from before a wait until after it, from a wait on that came after `forget`."""
        held = [0.0] * (self.turn + 1 - first_turn)
        for name in self._used:
            if name in self.words:
                born, dies = self.born.get(name, 0), self.dies.get(name, 0)
                for turn in range(max(born + 1, first_turn), min(dies, self.turn) + 1):
                    held[turn - first_turn] += self.words[name]
        return max(held)

    def peak_words(self, loads: float, first_turn: int | None = None) -> float:
        """Most words of a thread that live at once, up to `loads` of them vectors just loaded.

        What is loaded to be kept lies where it is kept.  first_turn: of the section at hand, if only that counts.
        """
        names = self.words if first_turn is None else self._used
        first = first_turn or 0
        turns = self.turn + 1 - first
        held = [0.0] * turns  # from before a wait until after it
        dying = [0.0] * turns  # those of them that are not needed later
        new = [0.0] * turns
        for name in names:
            words = self.words.get(name, 0.0)
            born, dies = self.born.get(name, 0), self.dies.get(name, 0)
            if born >= first:
                new[born - first] += words
            for turn in range(max(born + 1, first), min(dies, self.turn) + 1):
                held[turn - first] += words
            if max(born + 1, first) <= dies <= self.turn:
                dying[dies - first] += words
        peak = 0.0
        for turn in range(turns):
            # New values take the places of those that they are computed from.
            loaded = min(self.loaded.get(turn + first, 0.0), loads)
            changing = max(dying[turn], new[turn], loaded)
            peak = max(peak, held[turn] - dying[turn] + changing)
        return peak
