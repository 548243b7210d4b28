"""What keeps a rank in accord with the others beside the questions it asks.

The ranks' n-th uses of a name belong together, so a call that fails before it asks must not pass unnoticed: the names
that were made and not asked for yet are known here. Optimizers that have gradients ready help where all ranks wait.
And after a deadlock, when the ranks have perhaps counted differently what has no name, all of them begin to count anew.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from worker_runtime.coordination.mentions import Mention


class Helper(Protocol):
    """Who may have something to ask that the program would ask later."""

    def help(self, mention: Mention) -> bool:
        """Ask without waiting what belongs to an operation that is wanted, if it is ready.

        Returns:
            Whether there is nothing more to be done for it; otherwise this is called again. Never raises.
        """


class Unasked(threading.local):
    """Of each thread, the names that were made and not asked for yet, by calls that have not returned yet.

    names: the sets and names, each with its number.
    made: how many names were made, asked for or not.
    calls: how many calls are under way, one within the other, that tell of such names.
    """

    def __init__(self) -> None:
        self.names: dict[tuple[int, str], int] = {}
        self.made = 0
        self.calls = 0


class Accord:
    """One for each executor; for any thread.

    Args:
        restart: what else is to be done when counting begins anew.

    restarts: how often it has.
    is_wanted: an operation is wanted, and a helper may have more to do for it.
    unasked: names, of each thread by itself. Every operation passes there, so that it is written and read directly.
    """

    def __init__(self, restart: Callable[[], None] = lambda: None) -> None:
        self.restarts = 0
        self.is_wanted = False
        self._restart = restart
        self.unasked = Unasked()
        self._helpers: weakref.WeakSet[Helper] = weakref.WeakSet()
        self._wanted: list[Mention] = []
        self._waits = 0  # threads that have waited for a while
        self._lock = threading.RLock()  # a signal's handler may come between
        self._helping = threading.Lock()

    def find_unasked(self, made: int) -> list[tuple[int, str]]:
        """The sets and names that this thread has made after so many others, and has not asked for."""
        return [call for call, number in self.unasked.names.items() if number > made]

    def add_helper(self, helper: Helper) -> None:
        """Have it asked for help as long as it lives."""
        with self._lock:
            self._helpers.add(helper)

    def begin_wait(self) -> None:
        """A thread has waited for a while, and can help from now on."""
        with self._lock:
            self._waits += 1

    def end_wait(self) -> None:
        """It waits no longer; what was wanted meanwhile its program may come to by itself."""
        with self._lock:
            self._waits -= 1
            if not self._waits:
                self._wanted.clear()
                self.is_wanted = False

    def want(self, mention: Mention) -> None:
        """All ranks wait, and this one is missed in an operation. Of no use where it waits no longer."""
        with self._lock:
            if self._waits:
                self._wanted.append(mention)
                self.is_wanted = True

    def help(self) -> None:
        """Have the helpers ask what is wanted, as far as it is ready. For threads that wait; one at a time helps."""
        if self._helping.acquire(blocking=False):
            try:
                helped = [mention for mention in tuple(self._wanted) if self._have_helped(mention)]
            finally:
                self._helping.release()
            with self._lock:
                self._wanted = [mention for mention in self._wanted if mention not in helped]
                self.is_wanted = bool(self._wanted)

    def restart(self) -> None:
        """All ranks were out of step, and are told so at one and the same place."""
        self.restarts += 1
        self._restart()

    def _have_helped(self, mention: Mention) -> bool:
        with self._lock:
            helpers = tuple(self._helpers)
        return all([helper.help(mention) for helper in helpers])  # noqa: C419 - each is to have its chance
