"""Notifications to the members: first those that hold now, then each new one.

The server has one topic for each host, and an agent's relay has one for its host. A subscriber that comes late, or
reconnects, misses nothing that still holds. A server that was started again repeats what holds, with the same keys.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncGenerator, Collection, Iterator
from dataclasses import dataclass, field

from rendezvous.core.messages import Announce, Depart, Effect, Interrupt, OfferResize, Publish, Refuse
from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Action, RecoveryDecision

KEY_BYTES = 32  # of a generation's key, and of the secret from which the keys of a job follow


@dataclass(frozen=True, slots=True)
class Published:
    """A generation was formed; only the members on the receiving host are listed.

    key: KEY_BYTES bytes, the secret of the generation's members and their agents.
    """

    generation: int
    members: tuple[tuple[Worker, Assignment], ...]
    key: bytes = field(repr=False)
    decision: RecoveryDecision = RecoveryDecision(Action.BEGIN)  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class SequencerFailed:
    """The generation's sequencer could not be started; goes to the workers of rank 0's host, instead of `Announce`.

    reason: one sentence, without a full stop.
    """

    generation: int
    reason: str


Notification = Published | Interrupt | OfferResize | Announce | SequencerFailed | Refuse | Depart


class StandingNotifications:
    """The notifications that hold now, in the order of their publication."""

    def __init__(self) -> None:
        self._notifications: dict[object, Notification] = {}

    def __iter__(self) -> Iterator[Notification]:
        return iter(self._notifications.values())

    def add(self, notification: Notification) -> bool:
        """Add a notification, and remove those that it supersedes; False if it is there already, or is out of date."""
        key = _find_key(notification)
        former = self._notifications.get(key)
        if former == notification or self._is_late(notification, former):
            return False
        # A new generation supersedes all notifications about the former one.
        if isinstance(notification, Published):
            self._notifications.clear()
        self._notifications.pop(key, None)  # so that the new one comes last
        self._notifications[key] = notification
        return True

    def _is_late(self, notification: Notification, former: Notification | None) -> bool:
        """A newer one is known: of a later generation, or with a higher number."""
        if isinstance(notification, Refuse):
            return False
        newest = self._notifications.get(Published)
        is_past = isinstance(newest, Published) and notification.generation < newest.generation
        return is_past or (former is not None and _find_age(notification) < _find_age(former))


class Topic:
    """The notifications that hold now, and their subscribers; belongs to one event loop."""

    def __init__(self) -> None:
        self._standing = StandingNotifications()
        self._subscribers: set[asyncio.Queue[Notification | None]] = set()
        self._is_closed = False

    def publish(self, notification: Notification) -> None:
        """Send a notification to all present and later subscribers; one that holds already is not repeated."""
        if self._standing.add(notification):
            for subscriber in self._subscribers:
                subscriber.put_nowait(notification)

    async def subscribe(self) -> AsyncGenerator[Notification, None]:
        """Every notification that holds now, then each new one, until the generator or the topic is closed."""
        queue: asyncio.Queue[Notification | None] = asyncio.Queue()
        for notification in self._standing:
            queue.put_nowait(notification)
        if self._is_closed:
            queue.put_nowait(None)
        self._subscribers.add(queue)
        try:
            while (notification_or_end := await queue.get()) is not None:
                yield notification_or_end
        finally:
            self._subscribers.discard(queue)

    def close(self) -> None:
        """End every subscription."""
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.put_nowait(None)


def _find_key(notification: Notification) -> object:
    """A notification supersedes that of the same kind; one about a worker, that about the same worker."""
    match notification:
        case Refuse(worker) | Depart(_, worker):
            return type(notification), worker
        case _:
            return type(notification)


def _find_age(notification: Notification) -> tuple[int, int]:
    """The generation, and the number of an offer: the higher, the newer."""
    if isinstance(notification, Refuse):
        return 0, 0
    return notification.generation, notification.number if isinstance(notification, OfferResize) else 0


class Topics:
    """One topic for each host, for its own members only.

    Args:
        secret: of the job; the key of each generation follows from it. None: a random one.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._topics: dict[str, Topic] = {}
        self._secret = secret or secrets.token_bytes(KEY_BYTES)

    def of(self, host: str) -> Topic:
        """The topic of one host."""
        return self._topics.setdefault(host, Topic())

    def publish(self, effect: Effect) -> bool:
        """Publish an effect to the hosts that it concerns; False if it is not a notification."""
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

    def repeat(self, publish: Publish, hosts: Collection[str]) -> None:
        """Publish a generation that has been published before, to these hosts."""
        self._publish_generation(publish, hosts)

    def forget(self, host: str) -> None:
        """End the subscriptions to this host's topic; its next agent finds a new one."""
        if (topic := self._topics.pop(host, None)) is not None:
            topic.close()

    def _publish_generation(self, publish: Publish, hosts: Collection[str] | None = None) -> None:
        number = publish.generation.number
        key = self._make_key(number)
        members: dict[str, list[tuple[Worker, Assignment]]] = {}
        for worker, assignment in zip(publish.generation.members, publish.assignments, strict=True):
            members.setdefault(worker.slot.host, []).append((worker, assignment))
        for host, ranked in members.items():
            if hosts is None or host in hosts:
                self.of(host).publish(Published(number, tuple(ranked), key, publish.decision))

    def _make_key(self, generation: int) -> bytes:
        """The key of a generation; the same if it is published again, also by another server of the job."""
        return hmac.digest(self._secret, f"generation {generation}".encode(), "sha256")
