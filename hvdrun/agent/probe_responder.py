"""Takes part in connectivity checks, before the job and while it runs: a host that joins must reach the others.

The listeners of a check are closed some time after its last question. No message says that a check is over, since a
launcher that has gone could not send it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdrun.processes.background import cancel_and_wait, start_task
from rendezvous.wire.orders import AgentMessage, ListAddresses, ProbePeers

if TYPE_CHECKING:
    from hvdrun.network.connectivity import Participant

LISTEN_SECONDS = 60.0  # after the last question: longer than a launcher waits for the answers of all hosts


class ProbeResponder:
    """Answers one check after the other; belongs to one event loop.

    Args:
        tell: sends an answer.
        listen_seconds: how long to listen after the last question.
    """

    def __init__(self, tell: Callable[[AgentMessage], None], *, listen_seconds: float = LISTEN_SECONDS) -> None:
        self._tell = tell
        self._listen_seconds = listen_seconds
        self._participant: Participant | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, question: ListAddresses | ProbePeers) -> asyncio.Task[None]:
        """Answer this question in a task; a ListAddresses begins another check."""
        match question:
            case ListAddresses():
                self._stop_listening()
                answering = self._list_addresses(self._join(question))
            case ProbePeers():
                answering = self._probe(self._participant, question)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._listen_seconds, self._stop_listening)
        return start_task(answering, "answer a connectivity check", self._tasks)

    async def close(self) -> None:
        """Stop answering."""
        self._stop_listening()
        await cancel_and_wait(self._tasks)

    def _join(self, question: ListAddresses) -> "Participant":
        from hvdrun.network.connectivity import Participant  # noqa: PLC0415 - a job on one host needs no check

        self._participant = Participant(question.token, question.host)
        return self._participant

    async def _list_addresses(self, participant: "Participant") -> None:
        found = await participant.list_addresses()
        if participant is self._participant:
            self._tell(found)
        else:
            # Another check has begun meanwhile.
            participant.close()

    async def _probe(self, participant: "Participant | None", question: ProbePeers) -> None:
        # Of a check that is over.
        if participant is None:
            return
        probed = await participant.probe(question.targets)
        if participant is self._participant:
            self._tell(probed)

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._participant is not None:
            self._participant.close()
            self._participant = None
