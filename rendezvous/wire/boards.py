"""The boards of all hosts, on which the server hangs what the core decides about membership."""

import secrets

from rendezvous.core.messages import Announce, Depart, Effect, Interrupt, OfferResize, Publish, Refuse
from rendezvous.core.model import Assignment, Worker
from rendezvous.wire.notifications import (
    KEY_BYTES,
    Board,
    Departed,
    Interrupted,
    Notice,
    Published,
    Refused,
    ResizeOffered,
    SequencerOpened,
)


class Boards:
    """One board per host; each tells of its own members only."""

    def __init__(self) -> None:
        self._boards: dict[str, Board] = {}
        self._key = (0, b"")  # the last generation's number, and its key

    def of(self, host: str) -> Board:
        """The board of one host."""
        return self._boards.setdefault(host, Board())

    def post(self, effect: Effect) -> bool:
        """Tell those whom this effect concerns; False when it is none about membership."""
        match effect:
            case Publish():
                self._publish(effect)
            case Interrupt(generation, reason):
                self._post(Interrupted(generation, reason))
            case OfferResize(generation, number, adds, removes):
                self._post(ResizeOffered(generation, number, adds, removes))
            case Announce(generation, endpoint):
                self._post(SequencerOpened(generation, endpoint))
            case Depart(generation, worker, rank):
                self._post(Departed(generation, worker, rank))
            case Refuse(worker, reason):
                self.of(worker.slot.host).post(Refused(worker, reason))
            case _:
                return False
        return True

    def forget(self, host: str) -> None:
        """Whoever follows this host's board is told no more; its next agent finds a new one."""
        if (board := self._boards.pop(host, None)) is not None:
            board.close()

    def _publish(self, publish: Publish) -> None:
        number = publish.generation.number
        key = self._make_key(number)
        members: dict[str, list[tuple[Worker, Assignment]]] = {}
        for worker, assignment in zip(publish.generation.members, publish.assignments, strict=True):
            members.setdefault(worker.slot.host, []).append((worker, assignment))
        for host, ranked in members.items():
            self.of(host).post(Published(number, tuple(ranked), key, publish.verdict))

    def _post(self, notice: Notice) -> None:
        for board in self._boards.values():
            board.post(notice)

    def _make_key(self, generation: int) -> bytes:
        """The key of a generation: one for all its members, and told again when that is."""
        if self._key[0] != generation:
            self._key = generation, secrets.token_bytes(KEY_BYTES)
        return self._key[1]
