"""What a statement says of itself: its effects in order, and the statements inside of it.

The checker, the cost model and the visitors read this description, so that they need no case for each statement.
Expressions describe themselves in the same words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Self

from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard

NAMES_OF_A_TASK = ("task", "turn", "next_turn", "outer", "outer_raw", "row_tile", "col_tile")
"""Names that a body for another task has for itself."""


class Held(enum.Enum):
    """What a variable of the emitted program holds."""

    INTEGER = "integer"
    VALUE = "value"
    VECTOR = "vector"
    STATE = "state"
    KEPT = "kept"
    PREFETCHED = "prefetched"
    BATCH = "batch"


# ---- effects ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define:
    """The statement declares a variable.  width: elements of a vector."""

    name: str
    held: Held
    dtype: DType | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """The statement reads or changes a variable that exists.  dtype, width: None: whatever it has."""

    name: str
    held: Held
    dtype: DType | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class UseOwn:
    """The statement uses values of one thread, in registers or in the thread's own part of a shared slot."""

    name: str
    held: Held
    dtype: DType | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The statement computes an index from integers."""

    form: Linear


@dataclass(frozen=True, slots=True)
class Compute:
    """The statement computes an expression."""

    expr: Expression


@dataclass(frozen=True, slots=True)
class Read:
    """The statement loads `width` elements at array + position; array: a parameter or a shared slot.

    dtype: None: that of the reducer's field.
    """

    array: str
    dtype: DType | None
    position: Linear
    width: int = 1


@dataclass(frozen=True, slots=True)
class Write:
    """The statement stores `width` elements at array + position; array: a parameter or a shared slot."""

    array: str
    dtype: DType
    position: Linear
    width: int = 1


@dataclass(frozen=True, slots=True)
class Together:
    """All threads of the block execute the statement.  otherwise: the fault where they do not."""

    otherwise: str


@dataclass(frozen=True, slots=True)
class Synchronize:
    """All threads of the block wait for each other."""


@dataclass(frozen=True, slots=True)
class Body:
    """The statement executes statements in a scope of their own; several bodies are alternatives.

    integers: names that only the body knows.  hidden: names around it that the body does not see.
    uniform: all threads of the block execute it.  repeated: more than once, all threads together.
    result: an expression that is computed at its end.
    """

    statements: tuple[Statement, ...]
    integers: tuple[str, ...] = ()
    uniform: bool = False
    repeated: bool = False
    hidden: tuple[str, ...] = ()
    result: Expression | None = None


Effect = Define | Use | UseOwn | Evaluate | Compute | Read | Write | Together | Synchronize | Body

# ---- who has effects ----------------------------------------------------------------------------------------------


class Expression:
    """A scalar in its compute type; a dataclass."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def effects(self) -> Iterator[Effect]:
        """What computing the expression needs."""
        raise NotImplementedError


class Statement:
    """A statement of a kernel; a dataclass."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def effects(self) -> Iterator[Effect]:
        """What the statement does, in order."""
        raise NotImplementedError

    @property
    def bodies(self) -> tuple[tuple[Statement, ...], ...]:
        """The statements inside."""
        return ()

    def with_bodies(self, bodies: Iterable[tuple[Statement, ...]]) -> Self:
        """The statement around other bodies, as many as `bodies` has."""
        assert not tuple(bodies)
        return self


class Nest(Statement):
    """A statement around one body."""

    __slots__ = ()
    body: tuple[Statement, ...]

    @property
    def bodies(self) -> tuple[tuple[Statement, ...], ...]:
        return (self.body,)

    def with_bodies(self, bodies: Iterable[tuple[Statement, ...]]) -> Self:
        (body,) = bodies
        return replace(self, body=body)


def evaluate_all(forms: Iterable[Linear]) -> Iterator[Effect]:
    """The effects of computing indices."""
    return map(Evaluate, forms)


def evaluate_guards(guards: Iterable[Guard]) -> Iterator[Effect]:
    """The effects of testing guards."""
    return (Evaluate(guard.form) for guard in guards)
