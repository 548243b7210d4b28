"""What keeps a rank in accord with the others: mentions, bundles of operations, and notices."""

import gc
from collections.abc import Sequence
from unittest.mock import Mock, call

import pytest

from tests.worker_runtime.conversation import Echo, Errand
from worker_runtime.collectives.operation import Bundler
from worker_runtime.coordination import bundles
from worker_runtime.coordination.accord import Accord
from worker_runtime.coordination.mentions import Mention
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.coordination.wire import ProtocolError, Released
from worker_runtime.engine.executor import Executor
from worker_runtime.engine.handles import Handle
from worker_runtime.groups.cancellation import Cancellation
from worker_runtime.membership.notifications import HOSTS_ADDED, HOSTS_REMOVED, NotificationManager

BUCKET, OTHER = Mention(0, "bucket", ""), Mention(1, "other", "")


class Helper:
    """Helps at the second call with each operation."""

    def __init__(self) -> None:
        self.calls: list[Mention] = []

    def help(self, mention: Mention) -> bool:
        """Noted."""
        self.calls.append(mention)
        return self.calls.count(mention) > 1


def test_names_that_were_made_since_and_not_asked_for_are_known_in_their_thread_alone() -> None:
    accord = Accord()
    for number, use in enumerate([(0, "before"), (0, "a"), (0, "b"), (0, "a"), (1, "a")], 1):
        accord.unasked.names[use] = accord.unasked.made = number
    del accord.unasked.names[0, "b"]
    assert accord.find_unasked(1) == [(0, "a"), (1, "a")]
    assert Errand(lambda: (accord.unasked.made, accord.find_unasked(0))).finish() == (0, [])


def test_helpers_are_called_until_they_have_helped() -> None:
    accord, helpers = Accord(), [Helper(), Helper()]
    for helper in helpers:
        accord.add_helper(helper)
    accord.begin_wait()
    accord.want(BUCKET)
    accord.want(OTHER)
    accord.help()
    assert accord.is_wanted
    accord.help()
    assert not accord.is_wanted
    accord.help()
    assert [helper.calls for helper in helpers] == [[BUCKET, OTHER] * 2] * 2


def test_what_is_wanted_is_forgotten_when_nobody_waits_any_more() -> None:
    accord = Accord()
    accord.want(BUCKET)
    assert not accord.is_wanted
    accord.begin_wait()
    accord.begin_wait()
    accord.want(BUCKET)
    accord.end_wait()
    assert accord.is_wanted
    accord.end_wait()
    assert not accord.is_wanted


def test_a_helper_that_is_gone_is_not_called() -> None:
    accord = Accord()
    accord.add_helper(Helper())
    gc.collect()
    accord.begin_wait()
    accord.want(BUCKET)
    accord.help()
    assert not accord.is_wanted


def test_a_restart_is_counted_and_passed_on() -> None:
    called = []
    accord = Accord(lambda: called.append(True))
    accord.restart()
    assert (accord.restarts, called) == (1, [True])


@pytest.mark.parametrize("mention", [Mention(0, "allreduce.x", ""), Mention(65535, "\u00e9", "ValueError: \u00e9")])
def test_a_mention_travels(mention: Mention) -> None:
    assert Mention.decode(memoryview(mention.encode())) == mention


def test_a_mention_s_text_may_be_whatever_an_error_says_and_cut_off_within_a_character() -> None:
    assert Mention.decode(memoryview(Mention(0, "x", "\ud800").encode())).text == "\\ud800"
    assert Mention.decode(memoryview(Mention(1, "x", "ab\u00e9").encode()[:-1])) == (1, "x", "ab\ufffd")


@pytest.mark.parametrize("name", [70_000 * "x", "\ud800"])
def test_a_name_that_no_operation_can_have_cannot_be_sent(name: str) -> None:
    with pytest.raises(ValueError, match=r"too long|surrogates"):
        Mention(0, name, "").encode()


@pytest.mark.parametrize("body", [b"", b"\0\0\2", b"\0\0\2\0x", b"\0\0\1\0\xff"])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="mention of an operation"):
        Mention.decode(memoryview(body))


class Noting(Bundler):
    """Notes which operations came together; those named "bad" cannot be finished so."""

    def __init__(self) -> None:
        self.packed: list[str] = []
        self.unpacked: list[tuple[str, bytes]] = []

    def pack(self, operations: Sequence[Echo]) -> list[bytes]:
        """Their payloads."""
        self.packed.append("".join(operation.title for operation in operations))
        return [operation.payload for operation in operations]

    def unpack(self, operations: Sequence[Echo], payload: memoryview) -> list[bytes]:
        """Their titles."""
        titles = [operation.title for operation in operations]
        if "!" in titles:
            raise RuntimeError("it was changed meanwhile")
        self.unpacked.append(("".join(titles), bytes(payload)))
        return [title.encode() for title in titles]


def make(title: str, bundler: Bundler | None) -> Echo:
    operation = Echo(title, title.encode())
    operation.bundler = bundler
    return operation


def answer(operations: Sequence[Echo], *payloads: bytes) -> tuple[list[Handle[bytes]], list[str]]:
    """Answer operations; their handles, and the titles of those that were performed each by itself."""
    executor, performed = Executor(), []
    handles: list[Handle[bytes]] = [Handle(executor, operation, 1) for operation in operations]
    released = Released(7, 3, (1,), ((2,), (3,)), 4, tuple(map(len, payloads)), memoryview(b"".join(payloads)))

    def perform(handle: Handle[bytes], terms: Release, payload: memoryview) -> None:
        performed.append(handle.title)
        handle.begin(terms, (), payload)

    def conclude(together: Sequence[Handle[bytes]], terms: Sequence[Release], unpack: bundles.Unpack) -> bool:
        results = unpack()
        for handle, term, result in zip(together, terms, results or (), strict=results is not None):
            handle.complete(term, result)
        return results is not None

    bundles.answer(released, handles, lambda number: (number, 1), perform, conclude)
    assert [handle.terms for handle in handles] == [
        Release(3 + place, operation.question, (0, 1), (1,), ((2,), (3,)), 4)
        for place, operation in enumerate(operations)
    ]
    return handles, performed


def test_only_neighbours_with_one_bundler_are_packed_together() -> None:
    one, other = Noting(), Noting()
    titles = [("a", one), ("b", one), ("c", None), ("d", one), ("e", other), ("f", other), ("g", None), ("h", None)]
    assert bundles.pack([make(*each) for each in titles]) == [title.encode() for title, _ in titles]
    assert (one.packed, other.packed) == (["ab"], ["ef"])


def test_only_neighbours_with_one_bundler_are_finished_together_each_with_its_own_bytes() -> None:
    one = Noting()
    operations = [make("a", None), make("b", one), make("c", one), make("d", None), make("e", one)]
    handles, performed = answer(operations, b"1", b"22", b"333", b"", b"4")
    assert performed == ["a", "d", "e"]
    assert one.unpacked == [("bc", b"22333")]
    assert [handle.wait() for handle in handles] == [b"1", b"b", b"c", b"", b"4"]


def test_where_one_cannot_be_finished_with_the_others_each_is_by_itself() -> None:
    one = Noting()
    handles, performed = answer([make("a", one), make("!", one)], b"1", b"2")
    assert performed == ["a", "!"]
    assert [handle.wait() for handle in handles] == [b"1", b"2"]


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


def test_a_cancellation_ends_what_it_covers_before_and_after_it() -> None:
    cancellation, ended = Cancellation(), list[str]()
    for name in ("first", "second"):
        cancellation.cover(lambda name=name: ended.append(name))
    assert ended == []
    cancellation.cancel()
    cancellation.cover(lambda: ended.append("late"))
    assert ended == ["first", "second", "late"]
