"""The rendezvous server of a job whose changes are told to a person."""

from collections.abc import Callable

from hvdrun.console.job_reporter import JobReporter
from rendezvous.core.messages import Effect, Event
from rendezvous.core.model import Policy
from rendezvous.server.server import Server
from rendezvous.wire.orders import Credential
from rendezvous.wire.tasks import TaskDesk


class ReportingServer(Server):
    """Shows every event to its reporter, before it happens, and then the state that it led to."""

    def __init__(
        self,
        policy: Policy,
        carry_out: Callable[[Effect], None],
        credential: Credential,
        reporter: JobReporter,
        tasks: TaskDesk | None = None,
    ) -> None:
        super().__init__(policy, carry_out, credential, tasks)
        self._reporter = reporter

    def submit(self, event: Event) -> None:
        """Let an event happen; see `Server`."""
        self._reporter.note_event(event, self.state)
        super().submit(event)
        self._reporter.note_state(self.state)
