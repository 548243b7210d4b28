"""What members are notified of: the present state first, then every change.

The server keeps one topic for each host, and the relay of an agent one for its host. A subscriber that comes late, or
comes again after a broken connection, misses nothing that still holds.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from rendezvous.core.messages import Announce, Depart, Effect, Interrupt, OfferResize, Publish, Refuse
from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Decision, Verdict

KEY_BYTES = 32  # of a generation's key


@dataclass(frozen=True, slots=True)
class Published:
    """A generation was formed; only the members on the receiving host are listed.

    key: KEY_BYTES random bytes that only the generation's members and their agents know.
    """

    generation: int
    members: tuple[tuple[Worker, Assignment], ...]
    key: bytes = field(repr=False)
    verdict: Verdict = Verdict(Decision.BEGIN)  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class SequencerFailed:
    """The generation will have no sequencer; told in place of `Announce`, to the workers of rank 0's host.

    reason: one sentence, without a full stop.
    """

    generation: int
    reason: str


Notification = Published | Interrupt | OfferResize | Announce | SequencerFailed | Refuse | Depart


class Snapshot:
    """The notifications that hold now, in the order of their publication."""

    def __init__(self) -> None:
        self._notifications: dict[object, Notification] = {}

    def __iter__(self) -> Iterator[Notification]:
        return iter(self._notifications.values())

    def add(self, notification: Notification) -> bool:
        """Take a notification in place of those that it supersedes; False when it is there already."""
        key = _find_key(notification)
        if self._notifications.get(key) == notification:
            return False
        if isinstance(notification, Published):  # a new generation ends what was said of the former one
            self._notifications.clear()
        self._notifications.pop(key, None)  # or the new one would stand where the old one did, before others
        self._notifications[key] = notification
        return True


class Topic:
    """A snapshot and those that subscribe to it; belongs to one event loop."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._subscribers: set[asyncio.Queue[Notification | None]] = set()
        self._is_closed = False

    def publish(self, notification: Notification) -> None:
        """Send a notification to all subscribers, now and later; one that holds already is not sent again."""
        if self._snapshot.add(notification):
            for subscriber in self._subscribers:
                subscriber.put_nowait(notification)

    async def subscribe(self) -> AsyncGenerator[Notification, None]:
        """Every notification that holds now, then each new one, until the generator or the topic is closed."""
        news: asyncio.Queue[Notification | None] = asyncio.Queue()
        for notification in self._snapshot:
            news.put_nowait(notification)
        if self._is_closed:
            news.put_nowait(None)
        self._subscribers.add(news)
        try:
            while (notification_or_end := await news.get()) is not None:
                yield notification_or_end
        finally:
            self._subscribers.discard(news)

    def close(self) -> None:
        """Send nothing more; every subscription ends."""
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.put_nowait(None)


def _find_key(notification: Notification) -> object:
    """What a newer notification supersedes: the one of its kind; of those about workers, the one about the same."""
    match notification:
        case Refuse(worker) | Depart(_, worker):
            return type(notification), worker
        case _:
            return type(notification)


class Topics:
    """One topic for each host, about its own members only."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._key = (0, b"")  # the last generation's number, and its key

    def of(self, host: str) -> Topic:
        """The topic of one host."""
        return self._topics.setdefault(host, Topic())

    def publish(self, effect: Effect) -> bool:
        """Notify the hosts that this effect concerns; False when it is not about membership."""
        match effect:
            case Publish():
                self._publish_generation(effect)
            case Interrupt() | OfferResize() | Announce() | Depart():
                for topic in self._topics.values():
                    topic.publish(effect)
            case Refuse(worker):
                self.of(worker.slot.host).publish(effect)
            case _:
                return False
        return True

    def forget(self, host: str) -> None:
        """End the subscriptions to this host's topic; its next agent finds a new one."""
        if (topic := self._topics.pop(host, None)) is not None:
            topic.close()

    def _publish_generation(self, publish: Publish) -> None:
        number = publish.generation.number
        key = self._make_key(number)
        members: dict[str, list[tuple[Worker, Assignment]]] = {}
        for worker, assignment in zip(publish.generation.members, publish.assignments, strict=True):
            members.setdefault(worker.slot.host, []).append((worker, assignment))
        for host, ranked in members.items():
            self.of(host).publish(Published(number, tuple(ranked), key, publish.verdict))

    def _make_key(self, generation: int) -> bytes:
        """The key of a generation: one for all its members, and the same when that is published again."""
        if self._key[0] != generation:
            self._key = generation, secrets.token_bytes(KEY_BYTES)
        return self._key[1]
