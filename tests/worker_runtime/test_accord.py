"""What keeps a rank in accord with the others."""

import gc
import threading

from worker_runtime.accord import Accord
from worker_runtime.mentions import Mention

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
    for number, call in enumerate([(0, "before"), (0, "a"), (0, "b"), (0, "a"), (1, "a")], 1):
        accord.unasked.names[call] = accord.unasked.made = number
    del accord.unasked.names[0, "b"]
    assert accord.find_unasked(1) == [(0, "a"), (1, "a")]
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append((accord.unasked.made, accord.find_unasked(0))))
    thread.start()
    thread.join()
    assert found == [(0, [])]


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
