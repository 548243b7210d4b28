"""Snapshots of a plain training loop: its state in memory that outlives the worker.

Threads: `hvd-snapshot` copies into that memory, with `in_background=True`.
"""

import gc
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from worker_runtime.elastic.handlers import Stateful
from worker_runtime.errors import SnapshotError
from worker_runtime.rendezvous import JOB, SNAPSHOT_FD, SNAPSHOT_MEMORY, read_may_restart
from worker_runtime.snapshots.choice import Summary, choose, describe_choice, find_difference, find_record
from worker_runtime.snapshots.contents import Packer, Row, ShardedStateError, find_unpicklable, unpack
from worker_runtime.snapshots.copies import Pace, clone, note_streams
from worker_runtime.snapshots.known_states import KnownStates, has_own_state
from worker_runtime.snapshots.memory import HALVES, NOWHERE, Key, Record, SnapshotMemory
from worker_runtime.snapshots.process_group import find_group
from worker_runtime.snapshots.random_states import (
    choose_generators,
    find_generators,
    pack_random_states,
    restore_packed,
)
from worker_runtime.snapshots.shortage import refuse_shortage, write_state
from worker_runtime.snapshots.trained import measure
from worker_runtime.torch.loading import load_checked, refuse_other_dtypes
from worker_runtime.torch.snapshot_values import SHARDED, refuse_unfit

_RESERVED = frozenset({"restore", "save"})
_LONGEST_CAUSE = 400  # characters of an error's text
_CHANGED = (
    "{} is an object with a state_dict before restore() or after it, not both: assign the object before restore()"
)
_UNBEGUN = "save() comes before restore(), and would replace what is there: call restore() in each round, before save()"
_OTHER = "this worker has another Snapshot: give all objects and values to one"
_SECOND = "another Snapshot of this worker has saved in this round: give all objects and values to one"
_OWNERS: "list[weakref.ref[Snapshot]]" = []  # the Snapshot of this worker


class Snapshot:
    """Keeps the state of a training loop in memory that outlives the worker, so that a restart loses no step.

    It is for jobs of torch.distributed with `--max-restarts` in which all ranks have the same state, as with
    DistributedDataParallel. The first worker of each host keeps the state; each rank keeps its random states. In other
    jobs nothing is kept. Objects with a state_dict are saved by it, and other values must be picklable. Each becomes an
    attribute, to which the program may assign.

    Args:
        model: a module.
        optimizer: an optimizer.
        every: of so many calls of `save()` one saves.
        in_background: `save()` copies the tensors on their device, and a thread copies them into the memory.
        **values: more objects and values, as `step=0`.

    Raises:
        SnapshotError: an object's state lies on several ranks, or an object with a state_dict is inside a list.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 1,
        in_background: bool = False,
        **values: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer}
        self._values: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | values
        if bad := _RESERVED.intersection(values) or [name for name in values if name.startswith("_")]:
            raise SnapshotError(f"a Snapshot cannot have a value of the name '{min(bad)}': choose another name")
        if not isinstance(every, int) or every < 1:
            raise SnapshotError(f"every is {every!r}: give the number of calls of save() of which one saves, 1 or more")
        for name, value in self._values.items():
            refuse_unfit(name, value)

        self._every = every
        self._writer = None
        if in_background:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="hvd-snapshot")
        self._writing: Future[None] | None = None
        self._clones: list[torch.Tensor] = []
        self._pace = Pace()
        self._packer = Packer()
        self._states: dict[str, KnownStates] = {}
        self._views: dict[int, tuple[mmap.mmap, list[Row], list[torch.Tensor]]] = {}  # of each half
        self._checked_bytes = 0

        self._rank = int(os.environ.get("RANK", "0"))
        self._size = int(os.environ.get("WORLD_SIZE", "1"))
        self._keeps_state = os.environ.get("LOCAL_RANK", "0") == "0"
        self._origin = NOWHERE  # the save from which this round continues
        self._newest = NOWHERE  # the last save of this slot, or else the origin
        self._round = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._has_begun = False  # by a call of restore()
        self._number = 0  # of calls of save(), those before a restore included
        self._measure: bytes | None = None  # at the first save after a restore
        self._pid = os.getpid()
        self._memory = _open_memory(self, self._rank)
        # A rank without memory, on a host that has no more files, say, continues from that of the others.
        self._may_restart = self._memory is not None or (JOB in os.environ and read_may_restart(os.environ))

    def __getattr__(self, name: str) -> Any:
        """A value that was given."""
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"this Snapshot has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Take another value in place of one that was given."""
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._values:
            refuse_unfit(name, value)
            if self._has_begun and isinstance(value, Stateful) is not isinstance(self._values[name], Stateful):
                raise SnapshotError(_CHANGED.format(name))  # the next round has the former kind, and cannot load this
            self._values[name] = value
        else:
            raise AttributeError(f"this Snapshot has no {name!r}: give it to the constructor")

    def restore(self) -> bool:
        """Continue from the newest save that all ranks had completed. All ranks call it, after `init_process_group()`.

        Returns:
            True; False if there is none, as in the first round, and then nothing has changed.

        Raises:
            SnapshotError: the process group is missing, this program keeps something else than the last one, another
                Snapshot of this worker, as of the program before, has saved in this round, or this host has too little
                memory for two copies.
        """
        if not self._may_restart:
            return False
        self._await_writer()
        group = find_group(self._size)
        self._rank, self._size = group.rank, group.size
        own: dict[int, Record] = {}
        random: list[tuple[Record, bytes]] = []
        if self._memory is not None:
            own, random = dict(self._memory.list_states()), list(self._memory.list_random())
        names = tuple(self._values)
        summaries = group.gather(
            Summary(names, tuple(own.values()), tuple(record for record, _ in random), self._number)
        )
        self._has_begun = True
        choice = choose(summaries)
        if choice is None:
            if self._round and self._rank == 0:
                _tell("no host has a snapshot of the rounds before: restore() gives False")
            return False
        if choice.key.round == self._round and not any(each.saves for each in summaries):
            raise SnapshotError(_SECOND)
        if (difference := find_difference(summaries, choice)) is not None:
            raise SnapshotError(f"the snapshots do not fit together: {difference}")

        half = next((half for half, record in own.items() if record.key == choice.key), None)
        fresh = find_generators(self._values)
        description, data = group.share(choice.source, lambda: self._read(half, own))
        self._load(description, data)
        if half is None:
            self._keep_copy(find_record(summaries, choice), description, data)
        mine = {record.rank: taken for record, taken in random if record.key == choice.key}
        known = {rank: taken for each in group.gather(mine) for rank, taken in each.items()}
        as_rank = self._rank if choice.lost is not None else None
        if as_rank in known:
            restore_packed(known[as_rank])
        self._values |= choose_generators(fresh, known, as_rank)
        self._origin, self._newest, self._measure = choice.key, choice.key, None
        self._number = choice.key.number
        if self._rank == 0:
            _tell(describe_choice(choice))
        return True

    def save(self) -> None:
        """Keep the present state. All ranks call it equally often, after a step.

        Raises:
            SnapshotError: `restore()` was not called, there is too little memory for two copies, or a value cannot be
                pickled.
        """
        if not self._may_restart or self._pid != os.getpid():
            return
        if not self._has_begun:
            raise SnapshotError(_UNBEGUN)
        self._number += 1
        if self._number % self._every:
            return
        if self._memory is None:
            self._join_collectives()
            return
        if not self._keeps_state:
            self._pace.keep()
        key = Key(self._round, self._number)
        with _without_collections():
            if self._measure is None:
                for name, value in self._values.items():
                    refuse_unfit(name, value)  # a model may be sharded after restore()
                self._measure = measure(self._values.values())
            random = pack_random_states(find_generators(self._values))
            self._memory.write_random(key, self._origin, self._rank, self._size, random, measure=self._measure)
            if self._keeps_state:
                self._save_state(self._memory, key)
            else:
                self._join_collectives()

    def _join_collectives(self) -> None:
        """Call each state_dict of the program's own: it may gather from all ranks, as torch's get_state_dict() does."""
        for value in map(_unwrap, self._values.values()):
            if isinstance(value, Stateful) and has_own_state(value):
                value.state_dict()

    def _save_state(self, memory: SnapshotMemory, key: Key) -> None:
        """Keep the state of this host, in place of the older of the two."""
        self._await_writer()
        states = {name: self._take(name, value) for name, value in self._values.items()}
        known = (each.known for each in self._states.values() if each.known is not None)
        try:
            description, tensors = self._packer.pack(states, known)
        except ShardedStateError as error:
            raise SnapshotError(SHARDED.format("a value", error.kind)) from None
        except Exception as error:
            name = find_unpicklable(states)
            raise SnapshotError(f"{name} cannot be pickled: {type(error).__name__}: {error}") from error

        data_bytes = self._packer.data_bytes
        half = memory.choose(range(HALVES), self._newest)
        record = Record(key, self._origin, self._rank, self._size, self._packer.layout, len(description), data_bytes)
        self._check_memory(memory, HALVES * (len(description) + data_bytes), tensors)
        if self._writer is None:
            self._write(memory, half, record, description, tensors)
        else:
            clone(tensors, self._clones)
            begin = note_streams(tensors)
            self._writing = self._writer.submit(self._write, memory, half, record, description, self._clones, begin)
        self._newest = key

    def _keep_copy(self, record: Record, description: bytes, data: Any) -> None:
        """Give a host without the chosen state a copy of it: the others may be lost before its first save."""
        if self._memory is None or not self._keeps_state:
            return
        refuse_shortage(self._memory, HALVES * (len(description) + record.data_bytes))

        def copy(mapping: mmap.mmap) -> None:
            mapping[: record.data_bytes] = data

        half = self._memory.choose(range(HALVES), record.key)
        write_state(self._memory, half, record, description, copy)

    def _take(self, name: str, value: Any) -> Any:
        """The state dict of an object, or a plain value itself."""
        if not isinstance(value, Stateful):
            self._states.pop(name, None)
            return value
        owner = _unwrap(value)
        if name not in self._states or self._states[name].owner is not owner:
            self._states[name] = KnownStates(owner)
        return self._states[name].take()

    def _write(
        self,
        memory: SnapshotMemory,
        half: int,
        record: Record,
        description: bytes,
        tensors: list[torch.Tensor],
        begin: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Copy a state into its half; `begin` enters the stream of a device."""

        def copy(mapping: mmap.mmap) -> None:
            known, table, views = self._views.get(half, (None, None, []))
            if known is not mapping or table is not self._packer.table:
                views = self._packer.view(mapping)
                self._views[half] = mapping, self._packer.table, views
            if tensors:
                with torch.no_grad(), begin():
                    torch._foreach_copy_(views, tensors)

        write_state(memory, half, record, description, copy)

    def _await_writer(self) -> None:
        """Wait for the copy in the background, and raise its error."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _check_memory(self, memory: SnapshotMemory, needed_bytes: int, tensors: list[torch.Tensor]) -> None:
        """Refuse, before the first save, a state for which there is too little memory, and so for all that follow.

        Raises:
            SnapshotError: there is too little.
        """
        if needed_bytes <= self._checked_bytes:
            return
        clone_bytes = 0 if self._writer is None else sum(tensor.nbytes for tensor in tensors if tensor.is_cpu)
        refuse_shortage(memory, needed_bytes, clone_bytes)
        self._checked_bytes = needed_bytes

    def _read(self, half: int | None, own: Mapping[int, Record]) -> tuple[bytes, Any, int] | None:
        """The chosen state, from the memory of this rank; None where it is damaged."""
        if half is None or self._memory is None:
            return None
        found = self._memory.read_state(half, own[half])
        return None if found is None else (*found, own[half].data_bytes)

    def _load(self, description: bytes, data: Any) -> None:
        """Load a state into the objects and values.

        Raises:
            SnapshotError: this program keeps something else.
        """
        plain = [name for name, value in self._values.items() if not isinstance(value, Stateful)]
        states = unpack(description, data, plain)
        if states.keys() != self._values.keys():
            theirs, ours = (", ".join(sorted(names)) for names in (states, self._values))
            raise SnapshotError(f"the snapshot has {theirs}, and this program keeps {ours}: start a new job")
        for name, state in states.items():
            if name in plain:
                self._values[name] = state
                continue
            try:
                owner = _unwrap(self._values[name])
                if isinstance(owner, torch.optim.Optimizer):
                    load_checked(owner, state)
                else:
                    refuse_other_dtypes(owner, state)
                    owner.load_state_dict(state)
            except Exception as error:
                cause = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_CAUSE]
                raise SnapshotError(f"{name} cannot load its snapshot ({cause}); start a new job") from error


def _open_memory(owner: Snapshot, rank: int) -> SnapshotMemory | None:
    """The memory of this worker's slot; None if there is none, which rank 0 says.

    Raises:
        SnapshotError: another Snapshot uses it.
    """
    descriptor = int(os.environ.get(SNAPSHOT_FD, "-1"))
    link = f"/proc/self/fd/{descriptor}"
    if not os.path.lexists(link) or not os.readlink(link).startswith(f"/memfd:{SNAPSHOT_MEMORY}"):  # noqa: PTH115 - text
        if rank == 0:
            _tell(f"Snapshot keeps nothing: {_explain_lack()}")
        return None
    if any(known() is not None for known in _OWNERS):
        raise SnapshotError(_OTHER)
    _OWNERS[:] = [weakref.ref(owner)]
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - os's signature
    try:
        return SnapshotMemory(descriptor)
    except OSError as error:
        raise SnapshotError(f"this worker gets no memory for snapshots: {error.strerror}; see `ulimit -f`") from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """A context without garbage collections: a save makes thousands of objects, all of which end with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _explain_lack() -> str:
    """Why this worker has no memory for snapshots."""
    if JOB not in os.environ:
        return "hvdrun has not started this program"
    if not read_may_restart(os.environ):
        return "this job starts no worker again; give hvdrun --max-restarts"
    if SNAPSHOT_FD in os.environ:
        return (
            f"a program between hvdrun and this one closed descriptor {os.environ[SNAPSHOT_FD]}; start this one alone"
        )
    return "the agent of this host could make no memory for it; raise `ulimit -n`"


def _unwrap(value: Any) -> Any:
    """The object whose state_dict is saved: a model is the same with and without DDP."""
    if isinstance(value, DistributedDataParallel):
        return value.module
    return value


def _tell(sentence: str) -> None:
    sys.stderr.write(f"hvdrun: {sentence}.\n")
    sys.stderr.flush()
