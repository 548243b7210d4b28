"""Polls the host discovery script once a second; the last good answer counts.

Hosts whose names no server knows do not delay the others.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hvdrun.errors import HvdrunError
from hvdrun.hosts import reach
from hvdrun.hosts.discovery_script import DiscoveryFailedError, DiscoveryImpossibleError, open_script
from hvdrun.hosts.preparation import add_hosts
from hvdrun.processes.background import BackgroundTasks, in_thread
from hvdrun.spec.command import LookupContext
from hvdrun.spec.hosts import HostList, count_slots
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.model import Host

PERIOD_SECONDS = 1.0
PATIENCE_SECONDS = 5.0  # before hvdrun prints that it waits for an answer
LOOKUPS_AT_ONCE = 32  # a name that no server knows takes seconds
LOOKUP_SECONDS = 1.0  # to wait for the names of one list


class Discovery:
    """Polls the script of one job; see `hvdrun.hosts.sources.Source`.

    Args:
        spec: the job, which has a script.
        notice: prints a sentence.
        former: the hosts that the script has named to a former server of the job; none if there was no answer.
    """

    def __init__(self, spec: JobSpec, notice: Callable[[str], None], former: tuple[Host, ...] = ()) -> None:
        self._spec = spec
        self._notice = notice
        self._found: asyncio.Queue[HostList] = asyncio.Queue()
        self._tasks = BackgroundTasks()
        self._lookups = Lookups(self._tasks)
        self._announced = former or spec.workers.hosts
        self._has_answered = bool(former)

    @property
    def coming(self) -> tuple[str, ...]:
        """See `Source`."""
        return self._lookups.pending

    async def run(self, use: Callable[[JobSpec], None]) -> None:
        """Poll until cancelled; see `Source`.

        Raises:
            HvdrunError: the script cannot be run, or the job cannot use its first answer.
        """
        with open_script(self._spec) as script:
            async with self._tasks:
                poller = DiscoveryPoller(script, self._found.put_nowait, self._notice, has_answered=self._has_answered)
                self._tasks.create_task(poller.run(), name="poll the discovery script")
                while True:
                    await self._take(await self._found.get(), use)

    async def _take(self, found: HostList, use: Callable[[JobSpec], None]) -> None:
        """Pass on the hosts of one answer, and again when more of their names have been looked up."""
        is_new = True
        while is_new or (self._lookups.pending and self._found.empty()):
            former, known = self._spec, await self._lookups.find_known(found)
            context = LookupContext(former.workers.directory, os.environ.get("PATH"), sys.executable)
            try:
                self._spec = add_hosts(former, known, context, self._lookups.is_local)
            except HvdrunError as error:
                if not self._announced:
                    raise
                self._notice(f"what the script names now is not taken: {error}")
                return

            if is_new:
                self.announce(found.hosts)
            if is_new or self._spec.workers.hosts != former.workers.hosts:
                use(self._spec)
            is_new = False

    def announce(self, hosts: tuple[Host, ...]) -> None:
        """Print what has changed since the last call, or that the first hosts are too few."""
        if self._announced:
            for change in describe_changes(self._announced, hosts):
                self._notice(f"{change}.")
        elif (offered := sum(host.slots for host in hosts)) < self._spec.workers.size:
            limits = self._spec.limits.elasticity
            limit_seconds = 0.0
            if limits is not None:
                limit_seconds = limits.recovery.elastic_timeout_seconds
            self._notice(
                f"the hosts offer {offered} of the {count_slots(self._spec.workers.size)} that the job starts with: it "
                f"waits for more, up to {limit_seconds:g} s (--elastic-timeout)."
            )
        self._announced = hosts


def describe_changes(before: Sequence[Host], now: Sequence[Host]) -> Iterator[str]:
    """What is different between two answers of the script, in at most three sentences without a full stop."""
    former, present = ({host.name: host.slots for host in hosts} for hosts in (before, now))
    came = [f"{host.name} ({count_slots(host.slots)})" for host in now if host.name not in former]
    gone = [host.name for host in before if host.name not in present]
    others = [
        f"{host.name} ({count_slots(host.slots)}, before {former[host.name]})"
        for host in now
        if former.get(host.name, host.slots) != host.slots
    ]
    if came:
        yield f"the script names new hosts: {', '.join(came)}"
    if gone:
        yield f"the script no longer names these hosts: {', '.join(gone)}"
    if others:
        yield f"the script names other numbers of slots: {', '.join(others)}"


class Answering(Protocol):
    """Answers which hosts there are, as `hvdrun.hosts.discovery_script.DiscoveryScript` does."""

    async def ask(self) -> HostList:
        """The hosts there are now.

        Raises:
            DiscoveryFailedError: there is no answer.
        """

    def refuse(self, failure: DiscoveryFailedError) -> DiscoveryImpossibleError:
        """The error to raise if another try cannot help."""


class DiscoveryPoller:
    """Polls one source, for one event loop.

    Args:
        source: answers with hosts.
        found: takes each answer that differs from the one before.
        complain: prints a sentence when answers start to fail or to be slow, fail in another way, or come again.
        period_seconds: from the beginning of one question to that of the next.
        patience_seconds: how long an answer may take before that is reported.
        has_answered: the source could be used before.
    """

    def __init__(
        self,
        source: Answering,
        found: Callable[[HostList], None],
        complain: Callable[[str], None],
        *,
        period_seconds: float = PERIOD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        has_answered: bool = False,
    ) -> None:
        self._source = source
        self._found = found
        self._complain = complain
        self._period_seconds = period_seconds
        self._patience_seconds = patience_seconds
        self._last: HostList | None = None
        self._has_answered = has_answered
        self._has_failed = False  # and that was printed
        self._kind = ""  # of the failure that was printed last
        self._is_slow = False  # the current answer, or the last one

    async def run(self) -> None:
        """Poll until cancelled.

        Raises:
            DiscoveryImpossibleError: the first answer shows that the source cannot work.
        """
        is_first = not self._has_answered
        while True:
            began = time.monotonic()
            try:
                hosts = await self._ask()
            except DiscoveryFailedError as failure:
                if is_first and failure.is_hopeless:
                    raise self._source.refuse(failure) from failure
                self._note_failure(failure)
            else:
                self._note_answer(hosts)
            is_first = False
            await asyncio.sleep(max(0.0, began + self._period_seconds - time.monotonic()))

    async def _ask(self) -> HostList:
        """Wait for the next answer, and print when it is slow, unless the former one was slow too."""
        was_slow, self._is_slow = self._is_slow, False
        timer = asyncio.get_running_loop().call_later(self._patience_seconds, self._note_slowness, was_slow)
        try:
            return await self._source.ask()
        finally:
            timer.cancel()

    def _note_slowness(self, was_slow: bool) -> None:  # noqa: FBT001 - a call of the loop's has no keywords
        self._is_slow = True
        if not was_slow:
            self._kind = ""
            running = f"the host discovery script has been running for {self._patience_seconds:g} s"
            self._complain(f"{running}; {self._describe_stand()}.")

    def _describe_stand(self) -> str:
        return "the hosts that it named last stay" if self._has_answered else "the job waits for its answer"

    def _note_failure(self, failure: DiscoveryFailedError) -> None:
        if failure.kind == self._kind:
            return
        self._has_failed, self._kind = True, failure.kind
        self._complain(f"the host discovery script failed: {failure}; {self._describe_stand()}.")

    def _note_answer(self, hosts: HostList) -> None:
        if self._has_failed:
            self._has_failed, self._kind = False, ""
            self._complain("the host discovery script names hosts again.")
        self._has_answered = True
        if hosts != self._last:
            self._last = hosts
            self._found(hosts)


class Lookups:
    """Finds out which hosts are this machine, in threads, for one event loop; each name is looked up once.

    Args:
        tasks: own the lookups.
    """

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._places = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._found: dict[str, bool] = {}
        self._pending: dict[str, asyncio.Task[None]] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """The names that are being looked up."""
        return tuple(self._pending)

    def is_local(self, name: str) -> bool:
        """This name, whose lookup is finished, is of this machine."""
        return self._found[name]

    async def find_known(self, listed: HostList) -> HostList:
        """The hosts whose names have been looked up, after a short wait for the others."""
        for host in listed.hosts:
            if host.name not in self._found and host.name not in self._pending:
                self._pending[host.name] = self._tasks.create_task(self._look_up(host.name), name="look up a host")
        waiting = [self._pending[host.name] for host in listed.hosts if host.name in self._pending]
        if waiting:
            await asyncio.wait(waiting, timeout=LOOKUP_SECONDS)
        return HostList(tuple(host for host in listed.hosts if host.name in self._found), listed.users)

    async def _look_up(self, name: str) -> None:
        try:
            async with self._places:
                self._found[name] = await in_thread(lambda: reach.is_local(name))
        finally:
            del self._pending[name]
