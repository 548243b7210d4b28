"""The background thread, which drives the conversation with the sequencer when no thread waits.

It sleeps until its bell (an eventfd) rings, so that it costs nothing while no operation is pending. Then it waits for
half a millisecond, so that a burst of operations becomes one message.
"""

import os
import select
import threading
import time
from collections.abc import Callable

_LINGER_SECONDS = 0.0005
_LINGERS = 10  # a longer burst is sent in parts
_JOIN_SECONDS = 5.0


class Background:
    """The thread and its bell. It starts immediately, and ends with `close`.

    Args:
        drive: drives until no operation is pending or the bell rings; gets a poller of the bell.
        count_asked: returns the number of submitted requests.

    is_rung: the bell has rung and the thread has not woken yet.
    """

    def __init__(self, drive: Callable[[select.poll], None], count_asked: Callable[[], int]) -> None:
        self._drive = drive
        self._count_asked = count_asked
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self.is_rung = False
        self._is_closed = False
        self._closing = threading.RLock()  # reentrant, since a signal's handler may close it too
        self._thread = threading.Thread(target=self._run, name="hvd-driver", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Wake the thread, unless it is already woken."""
        if not self.is_rung:
            self.is_rung = True
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Stop the thread, and wait for it up to a limit. The thread closes the bell."""
        with self._closing:
            self._is_closed = True
            os.eventfd_write(self._bell, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def abandon(self) -> None:
        """Close the bell in a forked child, which has no such thread."""
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
        """Wait for the end of a burst of submissions."""
        asked = -1
        for _ in range(_LINGERS):
            if asked == self._count_asked():
                break
            asked = self._count_asked()
            time.sleep(_LINGER_SECONDS)
        self.is_rung = False
