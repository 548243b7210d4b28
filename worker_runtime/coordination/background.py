"""The thread that drives the conversation with the sequencer when no thread waits, and the bell that wakes it.

It sleeps until the bell rings, so that nothing happens while nothing is pending; then it lingers for half a
millisecond, so that a burst of operations stays one message.
"""

import os
import select
import threading
import time
from collections.abc import Callable

_LINGER_SECONDS = 0.0005
_LINGERS = 10  # at most: a longer burst is sent in parts
_JOIN_SECONDS = 5.0


class Background:
    """The thread and its bell; begins immediately, and ends with `close`.

    Args:
        drive: until nothing is pending, or the bell rings, which the poller knows.
        count_asked: how many questions were asked until now.

    is_rung: it will look, so that there is no need to ring.
    """

    def __init__(self, drive: Callable[[select.poll], None], count_asked: Callable[[], int]) -> None:
        self._drive = drive
        self._count_asked = count_asked
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self.is_rung = False
        self._is_closed = False
        self._closing = threading.RLock()  # a signal's handler may close it, too
        self._thread = threading.Thread(target=self._run, name="hvd-driver", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Something was asked."""
        if not self.is_rung:
            self.is_rung = True
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """End the thread, which may still be driving when this returns; the bell is the thread's own to close."""
        with self._closing:
            self._is_closed = True
            os.eventfd_write(self._bell, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def abandon(self) -> None:
        """In a forked child, which has no such thread."""
        os.close(self._bell)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            with self._closing:
                os.close(self._bell)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        while not self._is_closed:
            poller.poll()
            os.eventfd_read(self._bell)
            if not self._is_closed:
                self._linger()
                self._drive(poller)

    def _linger(self) -> None:
        """Let a burst come to its end."""
        asked = -1
        for _ in range(_LINGERS):
            if asked == self._count_asked():
                break
            asked = self._count_asked()
            time.sleep(_LINGER_SECONDS)
        self.is_rung = False
