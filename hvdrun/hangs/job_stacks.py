"""Where the ranks of the launcher's job are; answers `hvdrun stacks`, and `hvdrun ps`."""

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial

from hvdrun.hangs.collector import ANSWER_SECONDS, NATIVE_SECONDS, StackCollector
from hvdrun.hangs.places import JobPlaces, RankPlace, find_places
from hvdrun.jobs.questions import Question, QuestionServer
from hvdrun.jobs.record import JobRecord
from rendezvous.core.model import Worker
from rendezvous.wire.hangs import Stacks
from rendezvous.wire.orders import Order


class JobStacks:
    """Asks the agents of one job; belongs to one event loop.

    Args:
        record: of the job.
        send: sends an order to a host's agent.
        list_hosts: the hosts whose agents have their configuration.
        list_ranks: the workers that have not ended, with their ranks.
    """

    def __init__(
        self,
        record: JobRecord,
        send: Callable[[str, Order], None],
        list_hosts: Callable[[], Collection[str]],
        list_ranks: Callable[[], Mapping[Worker, int]],
    ) -> None:
        self._record = record
        self._list_hosts = list_hosts
        self._list_ranks = list_ranks
        self._collector = StackCollector(send)
        self._server = QuestionServer(
            record.job,
            {
                Question.RECORD: self._tell_record,
                Question.STACKS: partial(self._describe, is_native=False),
                Question.NATIVE_STACKS: partial(self._describe, is_native=True),
            },
        )

    def open(self) -> None:
        """Answer from now on."""
        self._server.open()

    async def close(self) -> None:
        """Answer no more."""
        await self._server.close()

    def note(self, host: str, message: Stacks) -> None:
        """Take the answer of a host."""
        self._collector.note(host, message)

    async def find(self, chosen: Collection[int] | None = None, *, is_native: bool = False) -> tuple[RankPlace, ...]:
        """Where these ranks are, in their order; None: all.

        is_native: with frames of C and C++.
        """
        ranks = {worker: rank for worker, rank in self._list_ranks().items() if chosen is None or rank in chosen}
        begun = self._list_hosts()
        hosts = [host for host in dict.fromkeys(worker.slot.host for worker in ranks) if host in begun]
        limit_seconds = NATIVE_SECONDS if is_native else ANSWER_SECONDS
        return find_places(ranks, await self._collector.collect(hosts, limit_seconds, is_native=is_native), hosts)

    async def _describe(self, *, is_native: bool) -> str:
        command = " ".join(self._record.command)
        return JobPlaces(self._record.job, os.getpid(), command, await self.find(is_native=is_native)).encode()

    async def _tell_record(self) -> str:
        return self._record.encode()
