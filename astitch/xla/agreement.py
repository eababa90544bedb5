"""What one process made of a module -> what all processes of the program compile in its place.

Takes the module that XLA handed over and this process's version of it, hands on the version that the first process
decided for.  The first one writes its decision under a key of the module into JAX's key-value store, which takes one
value for a key; the others read it.  So no process waits for one that may never compile the module.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from astitch.device.cuda_driver import driver_version
from astitch.device.gpu import Gpu
from astitch.errors import first_line
from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.system.callbacks import pass_interrupt
from astitch.system.forks import ForkLock

FORM = "astitch agreement 2"

LONGEST_WAIT_S = 60.0
"""For the module of a process that has decided already."""

_LOOKS_EVERY_S = 0.05


class AgreementWarning(RuntimeWarning):
    """This process compiles another version of a module than the one that it made, or could not ask the others."""


class Store(Protocol):
    """The part of jaxlib's DistributedRuntimeClient that is used here.  All methods raise RuntimeError."""

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Raises where the key has a value, unless allow_overwrite."""

    def key_value_try_get_bytes(self, key: str) -> bytes:
        """Raises where the key has no value."""


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of a program.  process: the number of this one.  store: of them all."""

    process: int
    store: Store
    longest_wait_s: float = LONGEST_WAIT_S


@dataclass(frozen=True, slots=True)
class Agreed:
    """What to compile.

    module: serialized; None: the module as XLA handed it over.  reason: why it is not what this process made; empty
    where it is.
    """

    module: bytes | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the first process compiles.

    digest: of its module; empty: as XLA handed it over, for the reason.  settings: by which astitch, how.
    """

    process: int
    digest: str
    reason: str
    settings: str = ""

    def pack(self) -> bytes:
        return json.dumps([self.process, self.digest, self.reason, self.settings]).encode()

    @staticmethod
    def unpack(data: bytes) -> _Decision:
        return _Decision(*json.loads(data))


def find_group() -> Group | None:
    """The processes that jax.distributed.initialize() joined; None for a program of one process.

    Starts no backend.
    """
    from jax._src import distributed

    state: Any = distributed.global_state
    if state.client is None or state.num_processes < 2:
        return None
    return Group(state.process_id, state.client)


def agree(
    handed: Any,
    own: bytes | None,
    gpu: Gpu,
    *,
    reason: str = "",
    settings: str = "",
    devices: Iterable[Any] | None = None,
    group: Group | None = None,
) -> Agreed:
    """What all processes compile in place of a module; warns where another version than this process's was taken.

    handed: the HloModuleProto that XLA handed over.  own: what this process would return to XLA, None for the module as
    it is, and the reason for that.  gpu: what it was planned for.  settings: by which astitch, how.
    devices: of JAX's, that the program runs on, None where they are not known; a program on devices of this process
    alone needs no agreement.
    group: find_group() where it is not given.  Raises nothing but interrupts.
    """
    group = group or find_group()
    if group is None or _is_local(devices, group.process):
        return Agreed(own)
    try:
        agreed = _take_part(handed, own, gpu, reason, settings, group)
    except Exception as error:
        pass_interrupt(error)
        agreed = Agreed(None, f"the processes could not agree: {first_line(error)}")
    if agreed.reason:
        name = decode(handed.name)
        what = "XLA computes all of it here" if agreed.module is None else "its module is taken"
        warnings.warn(f"{name}: {agreed.reason}; {what}", AgreementWarning, stacklevel=2)
    return agreed


def _is_local(devices: Iterable[Any] | None, process: int) -> bool:
    """Are the devices known, and all of this process?"""
    return devices is not None and all(device.process_index == process for device in devices)


def _take_part(
    handed: Any, own: bytes | None, gpu: Gpu, reason: str, settings: str, group: Group
) -> Agreed:
    """Raises RuntimeError where the store fails, TimeoutError where the first process's module does not come."""
    key = key_of(handed, gpu)
    key = f"{key}/{_rounds.count(group, key, settings)}"
    digest = digest_data(own) if own is not None else ""
    mine = _Decision(group.process, digest, reason, settings)
    first = _decide(group.store, key, mine)
    if first.process == mine.process and first.digest and first.digest == mine.digest:
        assert own is not None
        data = zlib.compress(own, 1)
        group.store.key_value_set_bytes(f"{key}/module", data, allow_overwrite=True)
    if first.digest == mine.digest:
        return Agreed(own)
    if not first.digest:
        why = f" ({first.reason})" if first.reason else ""
        why += _tell_settings(mine, first)
        return Agreed(None, f"process {first.process} leaves it to XLA{why}")
    taken = _fetch(group, key, first)
    taken.id = handed.id
    why = f" ({reason})" if own is None and reason else ""
    why += _tell_settings(mine, first)
    other = f"process {first.process} decided for another version than process {group.process} made{why}"
    return Agreed(bytes(taken.SerializeToString()), other)


def _tell_settings(mine: _Decision, first: _Decision) -> str:
    """Whether processes stitch differently on purpose."""
    if mine.settings == first.settings:
        return ""
    return (
        f", with other settings of astitch (there {first.settings or 'none'}, here {mine.settings or 'none'}; "
        "give all processes the same)"
    )


class _Rounds:
    """How often this process has compiled a module with other settings than before.

    Processes that do the same compile a module with the same settings in the same round.  So a module that is compiled
    twice with different settings is decided twice, and processes with different settings still meet.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._seen: dict[tuple[int, int, str], list[str]] = {}
        self._stores: list[Store] = []

    def count(self, group: Group, key: str, settings: str) -> int:
        with self._lock:
            if not any(known is group.store for known in self._stores):
                self._stores.append(group.store)  # it is kept, so that its id stays its own
            seen = self._seen.setdefault((id(group.store), group.process, key), [])
            if settings not in seen:
                seen.append(settings)
            return seen.index(settings)


_rounds = _Rounds()


def _decide(store: Store, key: str, mine: _Decision) -> _Decision:
    """The first process's decision.  Raises RuntimeError where the store fails."""
    try:
        store.key_value_set_bytes(f"{key}/decision", mine.pack())
        return mine
    except Exception as error:
        pass_interrupt(error)
        refused = error
    try:
        return _Decision.unpack(store.key_value_try_get_bytes(f"{key}/decision"))
    except Exception as error:
        pass_interrupt(error)
        raise refused from error


def _fetch(group: Group, key: str, first: _Decision) -> Any:
    """The HloModuleProto of the process that decided, which writes it after its decision.  Raises TimeoutError."""
    end = time.monotonic() + group.longest_wait_s
    while True:
        try:
            data = group.store.key_value_try_get_bytes(f"{key}/module")
            break
        except Exception as error:
            pass_interrupt(error)
            if time.monotonic() > end:
                late = f"process {first.process} decided and sent no module in {group.longest_wait_s:g} s"
                raise TimeoutError(late) from error
        time.sleep(_LOOKS_EVERY_S)
    module = zlib.decompress(data)
    if digest_data(module) != first.digest:
        raise RuntimeError(f"process {first.process} sent another module than it decided for")
    return schema.HloModuleProto.FromString(module)


# ---- keys ----------------------------------------------------------------------------------------------------------


def key_of(handed: Any, gpu: Gpu) -> str:
    """The key under which processes agree.  It is the same for all that are given one module and can run each other's
    kernels.

    handed: an HloModuleProto.
    """
    target = (
        gpu.name,
        gpu.arch,
        gpu.sms,
        gpu.max_threads_per_sm,
        gpu.max_blocks_per_sm,
        gpu.registers_per_sm,
        gpu.shared_per_sm_bytes,
        gpu.shared_per_block_bytes,
        gpu.shared_reserved_bytes,
        driver_version(),
    )
    return f"astitch/{hashlib.sha256(repr((FORM, target, digest_module(handed))).encode()).hexdigest()}"


def digest_data(data: bytes) -> str:
    """digest_module of a serialized module."""
    return digest_module(schema.HloModuleProto.FromString(data))


def digest_module(given: Any) -> str:
    """Of all of a module that decides what it computes.

    given: an HloModuleProto.  Its number counts what the process has compiled before.  Source files may lie elsewhere
    on another host.
    """
    module = schema.HloModuleProto()
    module.CopyFrom(given)
    module.ClearField("id")
    module.ClearField("stack_frame_index")
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.ClearField("metadata")
    schema.sort_maps(module)
    return hashlib.sha256(module.SerializeToString(deterministic=True)).hexdigest()
