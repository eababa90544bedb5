"""How many words a thread's registers hold: what is kept from wait to wait, and what is loaded in between."""

from __future__ import annotations

ALWAYS = 1 << 30


class Registers:
    """words: of kept arrays and states; born, dies: the waits between which each is needed.

    loaded: words of vectors by wait.  turn: counts the waits.
    """

    def __init__(self) -> None:
        self.words: dict[str, float] = {}
        self.born: dict[str, int] = {}
        self.dies: dict[str, int] = {}
        self.loaded: dict[int, float] = {}
        self.turn = 0

    def hold(self, name: str, words: float, *, always: bool) -> None:
        """Registers hold `words` from now on: until the last use of `name`, or always."""
        self.words[name] = words
        self.born[name] = self.turn
        if always:
            self.dies[name] = ALWAYS

    def use(self, name: str) -> None:
        self.dies[name] = self.turn

    def forget(self) -> None:
        """What was held for the section before is gone."""
        self.dies = {n: min(t, self.turn) for n, t in self.dies.items()}

    def load(self, words: float) -> None:
        self.loaded[self.turn] = self.loaded.get(self.turn, 0.0) + words

    def held_words(self, turn: int, *, last: bool = False) -> float:
        """Words of a thread that live from before a wait until after it.  last: of those that are not needed later."""
        return sum(
            words
            for name, words in self.words.items()
            if self.born.get(name, 0) < turn <= (dies := self.dies.get(name, 0))
            and (dies == turn or not last)
        )

    def peak_words(self, loads: float) -> float:
        """Most words of a thread that live at once, up to `loads` of them vectors just loaded.

        What is loaded to be kept lies where it is kept.
        """
        peak = 0.0
        for turn in range(self.turn + 1):
            dying = self.held_words(turn, last=True)
            new = sum(w for n, w in self.words.items() if self.born.get(n, 0) == turn)
            # New values take the places of those that they are computed from.
            changing = max(dying, new, min(self.loaded.get(turn, 0.0), loads))
            peak = max(peak, self.held_words(turn) - dying + changing)
        return peak
