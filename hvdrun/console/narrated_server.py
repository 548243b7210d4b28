"""The rendezvous server of a job whose changes are told to a person."""

from collections.abc import Callable

from hvdrun.console.narrator import Narrator
from rendezvous.core.messages import Effect, Event
from rendezvous.core.model import Policy
from rendezvous.credentials import Credential
from rendezvous.server import Server
from rendezvous.tasks import TaskDesk


class NarratedServer(Server):
    """Shows every event to its narrator, before it happens, and then the state that it led to."""

    def __init__(
        self,
        policy: Policy,
        carry_out: Callable[[Effect], None],
        credential: Credential,
        narrator: Narrator,
        tasks: TaskDesk | None = None,
    ) -> None:
        super().__init__(policy, carry_out, credential, tasks)
        self._narrator = narrator

    def tell(self, event: Event) -> None:
        """Let an event happen; see `Server`."""
        self._narrator.note_event(event, self.state)
        super().tell(event)
        self._narrator.note_state(self.state)
