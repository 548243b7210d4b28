"""The check that each rank's own gradients are finite, before the average spreads them: `--check-nan`.

A rank examines each bucket before it is reduced. On a CPU the rank takes one sum for each bucket, and examines single
parameters where the sum is not finite. On a device nothing waits: the largest value of each gradient is computed there,
and read in the next step. To raise the error in the same step, the rank waits for the value.

A small allreduce in each step tells all ranks what each has found. So the first rank of a set reports it in one line,
and all ranks raise the same error.

**Loss scaling.** A gradient scaler that searches for its scale causes infinities, and skips such a step. A scale of 1
causes none. So nothing is reported while the scale is above 1.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import NotFiniteError, WrongArgumentError
from worker_runtime.reduction.bucket import Bucket, Contents, Entry, find_values
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.rendezvous import CHECK_NAN

FINITE = "allreduce.{}.finite"  # the operation's name, without the optimizer's
_KINDS = ("", "NaN", "infinity", "too large for the compression")
_NAN, _INFINITY, _COMPRESSED = range(1, len(_KINDS))
_UNIT_SCALE = 1.0
_REPEATS = 10  # of many bad steps in a row, those numbered by powers of this have a line; so have rows of bad steps

Scale = torch.Tensor | float | None  # of a loss; None without a scaler


class Found(NamedTuple):
    """What one rank has found in one step.

    place: the index of its last gradient that is not finite, which is the one nearest to the loss.
    kind: an index of `_KINDS`; 0 for nothing.
    bad_count: the number of its gradients that are not finite.
    """

    place: int = 0
    kind: int = 0
    bad_count: int = 0


class _Late(NamedTuple):
    """Values that a device still computes.

    entries: the gradients.
    largest: the largest absolute value of each, on the CPU when the event has happened.
    event: the end of the copy to the CPU; None where the device is not CUDA.
    """

    entries: Sequence[Entry]
    largest: torch.Tensor
    event: torch.cuda.Event | None


class FiniteCheck:
    """Finds gradients that are not finite, and reports on which ranks they are.

    Args:
        raises: raise an error, and do not only print.
        waits: wait for devices in each step, which `raises` implies.
        show: turns a gradient's name into the name that the user reads.
    """

    def __init__(self, *, raises: bool, waits: bool = False, show: Callable[[str], str] = str) -> None:
        self._raises = raises
        self._show = show
        self._waits = waits or raises
        self._steps = 0
        self._bad: dict[Entry, int] = {}  # of this step, with their kinds
        self._on_devices: list[_Late] = []  # of this step
        self._late: list[_Late] | None = None  # of the last step
        self._late_scale: Scale = None
        self._entries: Sequence[Entry] = ()
        self._blank = torch.zeros((0, 0), dtype=torch.int64, device="cpu")  # a table without findings
        self._handle: Handle[list[torch.Tensor]] | None = None
        self._found: dict[int, Found] = {}  # by rank, until it is settled
        self._number = 0  # of the step in which it was found, from 1 on
        self._is_first = False  # this rank speaks for its set
        self._is_settled = True
        self._streak = 0  # the number of bad steps in a row, up to the last one
        self._streaks = 0  # the number of such rows

    def withdraw(self) -> None:
        """Forget what this step has found; it is repeated, failed or discarded."""
        self._handle = None
        self._bad.clear()
        self._on_devices.clear()

    def fail_others(self, comm: Communicator, error: BaseException) -> None:
        """After a failure of the step here, make the others' exchange fail, if this rank did not submit its own."""
        if self._handle is None:
            comm.fail_others(FINITE, error)

    def look(self, bucket: Bucket[Any], contents: Contents[Any]) -> None:
        """Examine the gradients that a bucket is about to send."""
        if all(_is_finite(each) for each in bucket.list_sent(contents) if _is_on_cpu(each)):
            present = [(entry, each) for entry, each in bucket.pair_sent(contents) if not _is_on_cpu(each)]
        else:
            present = list(bucket.pair_sent(contents))
        self._look_at(present)

    def look_alone(self, entries: Sequence[Entry], rank: int) -> None:
        """Examine the gradients of a rank that reduces with no other."""
        self._look_at([(entry, values) for entry in entries if (values := find_values(entry)) is not None])
        self._entries = entries
        self._store({rank: self._collect(entries)}, is_first=True)
        self.count_step()

    def exchange(self, comm: Communicator, entries: Sequence[Entry]) -> None:
        """Examine all gradients, and exchange the findings of all ranks: for steps without buckets.

        Raises:
            HorovodInternalError: the exchange failed.
        """
        self._look_at([(entry, values) for entry in entries if (values := find_values(entry)) is not None])
        self.ask(comm, entries)
        self.finish(comm)

    def ask(self, comm: Communicator, entries: Sequence[Entry]) -> None:
        """Submit this rank's findings, if they were not submitted yet.

        Args:
            comm: the communicator.
            entries: all gradients, in the same order on all ranks.
        """
        if self._handle is not None:
            return
        self._entries = entries
        members = comm.members
        if len(self._blank) != members.size or not self._blank[members.position, 0]:
            self._blank = torch.zeros((members.size, 1 + len(Found._fields)), dtype=torch.int64, device="cpu")
            self._blank[members.position, 0] = 1  # this rank has not joined
        table, found = self._blank, self._collect(entries)
        if found.kind:
            table = table.clone()
            table[members.position, 1:] = torch.tensor(found, dtype=torch.int64, device="cpu")
        operation = Allreduce([table], Combination(Reduction.MAX), comm.members, FINITE.format(comm.name))
        operation.is_of_step = True
        self._handle = comm.engine.submit(operation)

    def finish(self, comm: Communicator) -> None:
        """Wait for the findings of all ranks.

        Raises:
            HorovodInternalError: the exchange failed.
        """
        if self._handle is None:
            return
        (table,) = comm.engine.wait(self._handle)
        if not table.view(comm.members.size, -1)[:, 1:].any():
            self._store({}, is_first=False)
            return
        rows = zip(comm.members.ranks, table.view(comm.members.size, -1).tolist(), strict=True)
        present = {rank: Found(*found) for rank, (has_taken_part, *found) in rows if has_taken_part}
        self._store(present, is_first=next(iter(present), None) == comm.members.rank)

    def drop(self, comm: Communicator) -> None:
        """Wait for the exchange of a step whose gradients are discarded, and drop its findings.

        Raises:
            HorovodInternalError: the exchange failed.
        """
        if self._handle is not None:
            comm.engine.wait(self._handle)
        self.withdraw()

    def count_step(self) -> None:
        """Count a completed step."""
        self._handle = None
        self._steps += 1

    def settle(self, scale: Scale = None) -> None:
        """Report the findings of the last step, once: before the optimizer steps, or a scaler decides whether it does.

        Args:
            scale: the factor of the loss by the program's gradient scaler; infinity where it is unknown.

        Raises:
            NotFiniteError: a gradient is not finite, and the check is to raise.
        """
        if self._is_settled:
            return
        self._is_settled = True
        is_late = self._late is not None
        if is_late:
            kept = scale.clone() if isinstance(scale, torch.Tensor) else scale
            scale, self._late_scale = self._late_scale, kept
        if not self._found:
            self._streak = 0
            return

        if scale is not None and float(scale) > _UNIT_SCALE:
            return
        self._streak += 1
        if self._streak == 1:
            self._streaks += 1
        sentence = self._describe(self._number - is_late, was_scaled=scale is not None)
        if self._raises:
            raise NotFiniteError(sentence)
        if self._is_first and self._must_tell():
            sys.stderr.write(f"hvdrun: {sentence}\n")
            sys.stderr.flush()

    def _must_tell(self) -> bool:
        """Whether this step gets a line; see `_REPEATS`."""
        if self._streak > 1:
            return _is_power(self._streak, _REPEATS)
        return self._streaks <= _REPEATS or _is_power(self._streaks, _REPEATS)

    def _describe(self, step: int, *, was_scaled: bool) -> str:
        """The findings as a sentence without its full stop."""
        (rank, first), *others = self._found.items()
        name, kind = self._show(self._entries[first.place].name), _KINDS[first.kind]
        text = f"rank {rank}'s gradient of {name} is not finite ({kind}) in step {step}"
        if first.bad_count > 1:
            text += f", and {first.bad_count - 1} more of its gradients"
        if others:
            text += f"; nor are gradients of rank {', '.join(str(other) for other, _ in others)}"
        if was_scaled:
            text += "; the gradient scaler has gone down to a scale of 1, so that is not the reason"
        if self._streak > 1:
            text += f"; this is so in the {self._streak} steps up to this one"
        elif self._streaks > 1:
            text += f"; this has happened {self._streaks} times"
        return text

    def _store(self, present: Mapping[int, Found], *, is_first: bool) -> None:
        self._found = {rank: found for rank, found in present.items() if found.kind}
        self._number = self._steps + 1
        self._is_first = is_first
        self._is_settled = False

    def _look_at(self, present: Sequence[tuple[Entry, torch.Tensor]]) -> None:
        """Examine single gradients: at once on a CPU, later on a device."""
        floating = [(entry, _as_real(values)) for entry, values in present if _has_infinity(values)]
        for entry, values in floating:
            if _is_on_cpu(values) and not _is_finite(values) and (what := _find_kind(entry, values)):
                self._bad[entry] = what
        kinds = {(values.device, values.dtype) for _, values in floating if not _is_on_cpu(values)}
        for kind in kinds:
            here = [(entry, each) for entry, each in floating if (each.device, each.dtype) == kind and each.numel()]
            largest = torch.stack(torch._foreach_norm([values for _, values in here], math.inf))  # noqa: SLF001 - torch's own optimizers and clipping use it
            self._on_devices.append(_send([entry for entry, _ in here], largest))

    def _collect(self, entries: Sequence[Entry]) -> Found:
        """This rank's findings: of this step, and on devices of the last one."""
        bad, self._bad = self._bad, {}
        late, self._on_devices = self._on_devices or None, []

        if self._waits:
            due, self._late = late, None
        else:
            due, self._late = self._late, late
        if due is not None:
            bad = {**bad, **_read(due)}

        places = {entry: place for place, entry in enumerate(entries) if entry in bad} if bad else {}
        if not places:
            return Found()
        last = max(places, key=places.__getitem__)
        return Found(places[last], bad[last], len(places))


def _send(entries: Sequence[Entry], values: torch.Tensor) -> _Late:
    """Begin to copy the largest values to the CPU, on the stream that computes them: another stream would not wait."""
    largest, event = values.float().to("cpu", non_blocking=True), None
    if values.is_cuda:
        event = torch.cuda.current_stream(values.device).record_event()
    return _Late(entries, largest, event)


def _read(late: Sequence[_Late]) -> dict[Entry, int]:
    """The gradients that were not finite, with their kinds."""
    bad = {}
    for entries, largest, event in late:
        if event is not None:
            event.synchronize()
        for entry, value in zip(entries, largest.tolist(), strict=True):
            if not math.isfinite(value):
                bad[entry] = _NAN if math.isnan(value) else _INFINITY
    return bad


def _is_on_cpu(values: torch.Tensor) -> bool:
    """Whether the values are on the CPU, so that reading them waits for no device."""
    return values.device.type == "cpu"


def _has_infinity(values: torch.Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()


def _as_real(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        return torch.view_as_real(values.resolve_conj())
    return values


def _is_finite(values: torch.Tensor) -> bool:
    """Whether a sum over the values is finite. A large sum may be infinite where all values are finite."""
    if not _has_infinity(values) or not values.numel():
        return True
    # The product is faster than the sum.
    if values.dim() == 1 and values.dtype in (torch.float32, torch.float64):
        return math.isfinite(torch.dot(values, values).item())
    if values.dtype.itemsize == 1:
        values = values.float()
    return bool(torch.isfinite(values.sum()))


def _find_kind(entry: Entry, values: torch.Tensor) -> int:
    """The kind of a gradient that is not finite as it is sent; 0 where it is finite."""
    if torch.isfinite(values).all():
        return 0
    own = find_values(entry)
    if own is not None and own.dtype is not values.dtype and own.is_floating_point() and torch.isfinite(own).all():
        return _COMPRESSED
    if torch.isnan(values).any():
        return _NAN
    return _INFINITY


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1


def make_finite_check(
    environment: Mapping[str, str], *, waits: bool = False, show: Callable[[str], str] = str
) -> FiniteCheck | None:
    """The check that HVD_CHECK_NAN asks for; None for none.

    Args:
        environment: of the process.
        waits: see `FiniteCheck`.
        show: see `FiniteCheck`.

    Raises:
        WrongArgumentError: the variable has another value.
    """
    text = environment.get(CHECK_NAN, "").strip()
    if text in ("", "0"):
        return None
    if text not in ("1", "error"):
        raise WrongArgumentError(
            f"{CHECK_NAN}={text!r} is none of 1 (print a line), error (raise one too) and 0 (no check)"
        )
    return FiniteCheck(raises=text == "error", waits=waits, show=show)
