"""One try to become a member of a generation and to connect to the others, in a thread that can be given up.

gloo cannot stop connecting on request, so the program must be able to continue without it: an abandoned
formation ends by itself, within its limit, and closes what it may still open.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from worker_runtime.coordination.group import Group, connect, form
from worker_runtime.coordination.link import Link
from worker_runtime.errors import InitializationError
from worker_runtime.groups.backends.choice import Choice
from worker_runtime.groups.torch_groups import Cancellation
from worker_runtime.rendezvous import Interrupt, Membership, OfferResize, RendezvousError, Report

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient

# The members are alive and come here one right after the other, whatever their programs do meanwhile.
CONNECT_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    """This worker has noticed that the generation cannot continue."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The next generation was published."""

    formation: "Formation"
    membership: Membership


@dataclass(frozen=True, slots=True)
class Connected:
    """Its members are connected."""

    formation: "Formation"


@dataclass(frozen=True, slots=True)
class Failed:
    """It came to nothing; nor will another, if that is final."""

    formation: "Formation"
    error: Exception
    is_final: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """This worker leaves the job."""


FormationEvent: TypeAlias = Joined | Connected | Failed
Event: TypeAlias = GenerationFailed | Interrupt | OfferResize | FormationEvent | Closed


class Formation:
    """Begins with `start()`; reports each step, in its thread, until it was abandoned.

    thread: ends soon when the formation is over.

    Args:
        client: of the rendezvous; others may use it meanwhile.
        address: on which the other members reach this worker.
        choice: through which backends tensors travel.
        after: the last generation that this worker was a member of.
        report: of this worker's state.
        on_event: is called with each step.
    """

    def __init__(  # noqa: PLR0917 - each is needed once, in one place
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
        """Begin."""
        self.thread.start()

    def release(self) -> tuple[Group | None, Link | None]:
        """What was formed, which the caller owns from now on; nothing in a world of one."""
        with self._lock:
            formed, self._formed = self._formed, None
        return formed or (None, None)

    def abandon(self) -> None:
        """It is not waited for any more: what it has opened, or opens still, is closed."""
        with self._lock:
            self._is_abandoned = True
        self._cancellation.cancel()
        self._close_formed()

    def _run(self) -> None:
        client = self._client
        try:
            membership = client.join(self._after, self.report)
            self.membership = membership
            self._report(Joined(self, membership))
            group = form(
                membership,
                client.await_sequencer,
                self._address,
                CONNECT_LIMIT,
                choice=self._choice,
                cancellation=self._cancellation,
            )
            link = None if group is None else connect(group, CONNECT_LIMIT)
        except (RendezvousError, InitializationError) as error:
            # Its traceback's frames hold the group, and with it the store and its connections.
            failure, is_final = error.with_traceback(None), self.membership is None
            self._report(Failed(self, failure, is_final))
        except BaseException as error:  # a fault of ours: nothing may wait for this thread
            fault = InitializationError(f"this worker cannot connect ({error!r})")
            self._report(Failed(self, fault, is_final=True))
            raise
        else:
            if group is not None and link is not None:
                with self._lock:
                    self._formed = group, link
            if not self._report(Connected(self)):
                self._close_formed()

    def _report(self, event: FormationEvent) -> bool:
        """Report a step, unless this was abandoned; whether it did."""
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
