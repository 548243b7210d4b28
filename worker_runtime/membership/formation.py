"""A formation: one attempt to join a generation and connect to its members, in a thread that can be abandoned.

gloo cannot stop connecting on request, so the program must be able to continue without it: an abandoned formation ends
within its time limit, and closes its connections.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from worker_runtime.coordination.group import Cancellation, Group, connect, form
from worker_runtime.coordination.link import Link
from worker_runtime.errors import InitializationError
from worker_runtime.groups.backends.choice import Choice
from worker_runtime.rendezvous import Interrupt, Membership, OfferResize, RendezvousError, Report

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient

# The members are alive, and connect at nearly the same time, independent of their programs.
CONNECT_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    """This worker has noticed that a generation has failed."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The formation has joined the next generation."""

    formation: "Formation"
    membership: Membership


@dataclass(frozen=True, slots=True)
class Connected:
    """The members of the formation's generation are connected."""

    formation: "Formation"


@dataclass(frozen=True, slots=True)
class Failed:
    """The formation failed.

    is_final: another attempt is useless.
    """

    formation: "Formation"
    error: Exception
    is_final: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """This worker leaves the job."""


FormationEvent: TypeAlias = Joined | Connected | Failed
Event: TypeAlias = GenerationFailed | Interrupt | OfferResize | FormationEvent | Closed


class Formation:
    """One attempt. After `start()` its thread reports each event, unless the formation was abandoned.

    thread: the thread of the formation.

    Args:
        client: a client of the rendezvous, which other threads may use too.
        address: the address on which the other members reach this worker.
        choice: the backends.
        after: the last generation of which this worker was a member.
        report: what this worker reports about itself when it joins.
        on_event: called with each event, in the formation's thread.
    """

    def __init__(  # noqa: PLR0917 - one call gives all of them
        self,
        client: "WorkerClient",
        address: str,
        choice: Choice,
        after: int,
        report: Report,
        on_event: Callable[[FormationEvent], None],
    ) -> None:
        self.report = report
        self.membership: Membership | None = None
        self._client = client
        self._address = address
        self._choice = choice
        self._after = after
        self._on_event = on_event
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._cancellation = Cancellation()
        self._formed: tuple[Group, Link] | None = None
        self.thread = threading.Thread(target=self._run, name="hvd-formation", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def release(self) -> tuple[Group | None, Link | None]:
        """Hand over the group and the connection to the caller; Nones in a world of one."""
        with self._lock:
            formed, self._formed = self._formed, None
        return formed or (None, None)

    def abandon(self) -> None:
        """Cancel the attempt, and close its present and later connections. Does not wait."""
        with self._lock:
            self._is_abandoned = True
        self._cancellation.cancel()
        self._close_formed()

    def _run(self) -> None:
        client = self._client
        try:
            membership = client.join(self._after, self.report)
            self.membership = membership
            self._send_event(Joined(self, membership))
            group = form(
                membership,
                client.await_sequencer,
                self._address,
                CONNECT_LIMIT,
                choice=self._choice,
                cancellation=self._cancellation,
            )
            link = None
            if group is not None:
                link = connect(group, CONNECT_LIMIT)
        except (RendezvousError, InitializationError) as error:
            # The frames of the error's traceback hold the group, and with it the store and its connections.
            failure, is_final = error.with_traceback(None), self.membership is None
            self._send_event(Failed(self, failure, is_final))
        except BaseException as error:  # a bug: report it, so that no thread waits for this one
            fault = InitializationError(f"this worker cannot connect ({error!r})")
            self._send_event(Failed(self, fault, is_final=True))
            raise
        else:
            if group is not None and link is not None:
                with self._lock:
                    self._formed = group, link
            if not self._send_event(Connected(self)):
                self._close_formed()

    def _send_event(self, event: FormationEvent) -> bool:
        """Pass an event on, unless the formation was abandoned; return whether it was passed on."""
        with self._lock:
            if self._is_abandoned:
                return False
        self._on_event(event)
        return True

    def _close_formed(self) -> None:
        group, link = self.release()
        if link is not None:
            link.close()
        if group is not None:
            group.torch_groups.close()
