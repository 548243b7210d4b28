"""News about hosts reach those who listen, once each; a cancellation reaches what it covers."""

from worker_runtime.cancellation import Cancellation
from worker_runtime.notifications import HOSTS_ADDED, HOSTS_REMOVED, NotificationManager


class Recorder:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, int]] = []

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Remember."""
        self.heard.append((timestamp, update_res))


def test_each_listener_hears_once_until_it_is_removed() -> None:
    manager, first, second = NotificationManager(), Recorder(), Recorder()
    manager.init()
    for listener in (first, second, first):
        manager.register_listener(listener)
    manager.handle_hosts_updated(1.0, HOSTS_ADDED)
    manager.remove_listener(first)
    manager.remove_listener(first)
    manager.handle_hosts_updated(2.0, HOSTS_REMOVED)
    assert first.heard == [(1.0, HOSTS_ADDED)]
    assert second.heard == [(1.0, HOSTS_ADDED), (2.0, HOSTS_REMOVED)]


def test_the_newest_is_repeated_until_it_is_forgotten() -> None:
    manager, listener = NotificationManager(), Recorder()
    manager.repeat_to(listener)
    manager.handle_hosts_updated(1.0, HOSTS_ADDED)
    manager.handle_hosts_updated(2.0, HOSTS_REMOVED)
    manager.repeat_to(listener)
    manager.forget()
    manager.repeat_to(listener)
    assert listener.heard == [(2.0, HOSTS_REMOVED)]


def test_a_cancellation_ends_what_it_covers_before_and_after_it() -> None:
    cancellation, ended = Cancellation(), list[str]()
    for name in ("first", "second"):
        cancellation.cover(lambda name=name: ended.append(name))
    assert ended == []
    cancellation.cancel()
    cancellation.cover(lambda: ended.append("late"))
    assert ended == ["first", "second", "late"]
