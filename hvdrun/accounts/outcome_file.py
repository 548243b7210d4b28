"""The file of --outcome: how a job ended, and what its time was spent on, as one JSON object with a version."""

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from hvdrun.accounts.history import History, Loss, WorkerHistory
from hvdrun.accounts.report import (
    PARTS,
    UNKNOWN,
    add_up,
    compute_goodput,
    find_recovery,
    find_stragglers,
    list_measured,
    split,
)
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, LaunchError
from rendezvous.core.messages import Finish
from rendezvous.core.model import Host
from rendezvous.core.outcome import SIGINT, SIGNAL_OFFSET, Cause, Outcome, name_signal
from rendezvous.wire.accounts import Account

VERSION = 1
# In place of a cause of the core: hvdrun itself has ended the job, before and after the first worker was started.
_NOT_STARTED, _BROKEN = "not started", "hvdrun failed"
_DIGITS = 6  # microseconds


class OutcomeFileError(LaunchError):
    """The file of --outcome cannot be written.

    Cause: Its folder does not exist, you may not write there, it is a folder, or no regular file.
    Remedy: Name a file in a folder that exists and is yours.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{str(path)!r} of --outcome cannot be written: {reason}; name another file.")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job before it starts.

    command: without secrets.
    hosts: those that it was given.
    """

    job: str
    command: tuple[str, ...]
    hosts: tuple[Host, ...]


class OutcomeFile:
    """The file of one job. It removes the file of an earlier job at once, and writes its own when the job has ended.

    Args:
        path: the file; None for none.
        facts: of the job.
        history: of the job.
        clock: the local time.
        tell: prints why the file cannot be written at the end.
        ago_seconds: how long ago the job began, under a former server.
        is_next: a former server has tried the file; the job trains, and no file is refused any more.

    is_lost: it could not be written at the end.

    Raises:
        OutcomeFileError: the file cannot be written now.
    """

    def __init__(
        self,
        path: Path | None,
        facts: JobFacts,
        history: History,
        clock: Callable[[], datetime],
        tell: Callable[[str], None],
        *,
        ago_seconds: float = 0.0,
        is_next: bool = False,
    ) -> None:
        self._path = path
        self._facts = facts
        self.history = history
        self._clock = clock
        self._tell = tell
        self.is_lost = False
        self._begin = clock() - timedelta(seconds=ago_seconds)
        self._began = time.monotonic() - ago_seconds
        if path is not None and not is_next:
            clear(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        self.write(error)

    def write(self, error: BaseException | None = None) -> None:
        """Write the file when the job has ended, perhaps by an error, which then has the bytes too."""
        if isinstance(error, HvdrunError):
            error.report = self.render(error)
        if self._path is None:
            return
        try:
            _replace(self._path, self.render(error))
        except OSError as failure:
            self.is_lost = True
            self._tell(f"{str(self._path)!r} of --outcome is not written: {failure.strerror}")

    def render(self, error: BaseException | None = None) -> bytes:
        """The bytes of the file if the job ends now, by this error if there is one."""
        times = {
            "begin": self._begin.isoformat(timespec="milliseconds"),
            "end": self._clock().isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - self._began, _DIGITS),
        }
        return render(self._facts, self.history, times, error)


def render(facts: JobFacts, history: History, times: dict[str, Any], error: BaseException | None = None) -> bytes:
    """The bytes of the file.

    Args:
        facts: of the job.
        history: what happened.
        times: the fields `begin`, `end` and `seconds`.
        error: that has ended hvdrun.
    """
    content = {
        "version": VERSION,
        "job": facts.job,
        "command": facts.command,
        "hosts": list(_list_hosts(facts, history)),
    }
    content |= times | _describe_end(history, error) | describe(history)
    return (json.dumps(content, indent=1) + "\n").encode()


def describe(history: History) -> dict[str, Any]:
    """The fields about what happened in the job, and what its time was spent on."""
    measured = list_measured(history)
    accounts = [account for _, account in measured]
    goodput = compute_goodput(accounts)
    workers = sorted(history.workers.values(), key=lambda each: (each.rank, each.started))
    stragglers = find_stragglers(measured, history.find_host)
    return {
        "sizes": [
            {"at": _round(each.at), "workers": each.workers, "round": each.round, "generation": each.generation}
            for each in history.sizes
        ],
        "losses": [_describe_loss(loss, accounts) for loss in history.losses],
        "goodput": None if goodput is None else _round(goodput),
        "seconds_by_part": _describe_parts(add_up(accounts)) if accounts else None,
        "stragglers": [
            {"rank": each.rank, "host": each.host, "last": each.last, "of": each.of, "seconds": _round(each.seconds)}
            for each in stragglers
        ],
        "workers": [_describe_worker(each) for each in workers],
    }


def _describe_end(history: History, error: BaseException | None) -> dict[str, Any]:
    end = history.end
    if end is not None and (error is None or isinstance(error, KeyboardInterrupt)):
        return {"exit_code": end.outcome.exit_code, "first_cause": _describe_cause(end)}
    match error:
        case KeyboardInterrupt():
            exit_code, reason = SIGNAL_OFFSET + SIGINT, "received SIGINT"
        case HvdrunError():
            exit_code, reason = error.exit_code, " ".join(error.lines)
        case _:
            exit_code, reason = CANNOT_LAUNCH, f"{type(error).__name__}: {error}"
    has_run = any(each.has_run for each in history.workers.values())
    cause = _BROKEN if has_run else _NOT_STARTED
    fields = {"cause": cause, "reason": reason, "culprit": None, **_describe_failed_part(None, None, None)}
    return {"exit_code": exit_code, "first_cause": fields | {"message": None, "evidence": None}}


def _describe_cause(end: Finish) -> dict[str, Any] | None:
    if end.outcome.cause is Cause.SUCCEEDED:
        return None
    return {
        "cause": str(end.outcome.cause),
        "reason": end.sentence or end.outcome.reason,
        "culprit": end.culprit or None,
        **_describe_failure(end.outcome),
    }


def _describe_failure(outcome: Outcome) -> dict[str, Any]:
    fields = _describe_failed_part(outcome.rank, outcome.host, outcome.returncode)
    if outcome.worker is not None:
        fields |= {"host": outcome.worker.slot.host, "slot": outcome.worker.slot.index}
    return fields | {"message": outcome.message or None, "evidence": outcome.evidence or None}


def _describe_failed_part(rank: int | None, host: str | None, returncode: int | None) -> dict[str, Any]:
    return {"rank": rank, "host": host, "slot": None, **_describe_returncode(returncode)}


def _describe_returncode(returncode: int | None) -> dict[str, int | str | None]:
    if returncode is not None and returncode < 0:
        return {"exit_code": None, "signal": name_signal(-returncode)}
    return {"exit_code": returncode, "signal": None}


def _describe_loss(loss: Loss, accounts: Sequence[Account]) -> dict[str, Any]:
    parts, recovery = find_recovery(loss, accounts), None
    if parts is not None:
        recovery = {
            "generation": parts.generation or None,
            "detect_seconds": _round(parts.detect),
            "reform_seconds": _round(parts.reform),
            "state_seconds": None if parts.state is None else _round(parts.state),
            "replay_seconds": None if parts.replay is None else _round(parts.replay),
        }
    outcome = loss.outcome
    return {
        "at": _round(loss.at),
        "cause": str(outcome.cause),
        "reason": outcome.reason,
        **_describe_failure(outcome),
        "recovery": recovery,
    }


def _describe_worker(each: WorkerHistory) -> dict[str, Any]:
    account, total = each.account, None
    if account is not None:
        total = account.total_seconds
    elif each.ended is not None:
        total = each.ended - each.started
    fields = {
        "rank": each.rank,
        "host": each.worker.slot.host,
        "slot": each.worker.slot.index,
        "incarnation": each.worker.incarnation,
        "started_at": _round(each.started),
        "ended_at": None if each.ended is None else _round(each.ended),
        **_describe_returncode(each.returncode),
        "total_seconds": None if total is None else _round(total),
        "seconds_by_part": None,
    }
    if account is None or not account.is_measured:
        return fields
    return fields | {
        "seconds_by_part": _describe_parts(split(account)),
        "steps": account.steps,
        "repeated_steps": account.repeated_steps,
        "waited_for": [
            {"rank": waited.rank, "seconds": _round(waited.seconds), "steps": waited.steps}
            for waited in account.waited_for
        ],
    }


def _describe_parts(parts: dict[str, float]) -> dict[str, float]:
    return {part: _round(parts[part]) for part in (*PARTS, UNKNOWN)}


def _list_hosts(facts: JobFacts, history: History) -> Iterator[dict[str, Any]]:
    """The hosts that the job was given, and those that came later, each with its slots."""
    known = {host.name: host.slots for host in facts.hosts}
    for worker in history.workers:
        if worker.slot.host not in {host.name for host in facts.hosts}:
            known[worker.slot.host] = max(known.get(worker.slot.host, 0), worker.slot.index + 1)
    for host, slots in known.items():
        yield {"host": host, "slots": slots}


def _round(seconds: float) -> float:
    return round(seconds, _DIGITS)


def clear(path: Path) -> None:
    """Find out whether the file can be written, and remove the file of an earlier job.

    Raises:
        OutcomeFileError: it cannot.
    """
    try:
        with suppress(FileNotFoundError):  # there was no earlier job
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OutcomeFileError(path, "it is no regular file")
        _replace(path, b"")
        path.unlink()
    except OSError as error:
        raise OutcomeFileError(path, error.strerror or str(error)) from error


def _replace(path: Path, content: bytes) -> None:
    """Write the file at once: a reader sees all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)  # left by a killed launcher of the same pid, as each in a container has
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
