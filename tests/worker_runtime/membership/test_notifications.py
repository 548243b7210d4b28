"""Listeners of changes of the hosts."""

from unittest.mock import Mock, call

from worker_runtime.membership.notifications import HOSTS_ADDED, HOSTS_REMOVED, NotificationManager


def test_each_listener_hears_once_until_it_is_removed() -> None:
    manager, first, second = NotificationManager(), Mock(), Mock()
    manager.init()
    for listener in (first, second, first):
        manager.register_listener(listener)
    manager.handle_hosts_updated(1.0, HOSTS_ADDED)
    manager.remove_listener(first)
    manager.remove_listener(first)
    manager.handle_hosts_updated(2.0, HOSTS_REMOVED)
    assert first.on_hosts_updated.mock_calls == [call(1.0, HOSTS_ADDED)]
    assert second.on_hosts_updated.mock_calls == [call(1.0, HOSTS_ADDED), call(2.0, HOSTS_REMOVED)]
