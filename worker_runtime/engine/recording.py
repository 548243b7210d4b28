"""The recording of a timeline, from one generation to the next.

Rank 0 has the recorder, and notes its own operations and waits. The other ranks send it their waits.
"""

from collections.abc import Callable, Sequence

from worker_runtime.account import ACCOUNT
from worker_runtime.coordination.driver import Driver
from worker_runtime.coordination.messages import Arrived, Waited
from worker_runtime.coordination.wire import RankSpan
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.in_flight import InFlight
from worker_runtime.engine.operation_recorder import OperationRecorder, WaitReceiver, WaitSender

OpenRecorder = Callable[[], OperationRecorder | None]  # creates it, for rank 0; None if it cannot be written


class Recording:
    """Records what one engine does, while a timeline is wanted.

    Args:
        in_flight: has the recorder, and notes in it when operations begin and end.
        find_driver: returns the driver of the present connection; None while there is none.

    waits: notes the waits of this rank's program; None while no timeline is recorded.
    """

    def __init__(self, in_flight: InFlight, find_driver: Callable[[], Driver | None]) -> None:
        self.waits: OperationRecorder | WaitSender | None = None
        self._in_flight = in_flight
        self._find_driver = find_driver
        self._open_recorder: OpenRecorder | None = None  # while a timeline is wanted
        self._receiver: WaitReceiver | None = None  # while this rank records

    def record(self, open_recorder: OpenRecorder | None, generation: Generation) -> None:
        """Record from now on, in each generation in which this worker is rank 0; None: no longer."""
        if open_recorder is None:
            self._end_receiver(awaits_last=True)
        self._open_recorder = open_recorder
        self._begin(generation)

    def continue_in(self, generation: Generation) -> None:
        """Record in another generation, which has its connections."""
        if self._open_recorder is not None:
            self._begin(generation)

    def _begin(self, generation: Generation) -> None:
        in_flight = self._in_flight
        if self._open_recorder is None or generation.rank != 0:
            in_flight.recorder = None
        elif in_flight.recorder is None:
            in_flight.recorder = self._open_recorder()
        self._record_waits(generation)

        recorder = in_flight.recorder
        if recorder is not None:
            recorder.note(f"generation {generation.number}: {generation.size} rank{'s' * (generation.size > 1)}")
        if generation.driver is not None and generation.rank == 0:
            generation.driver.record(is_on=recorder is not None)

    def _record_waits(self, generation: Generation) -> None:
        former, recorder = self.waits, self._in_flight.recorder
        if generation.rank == 0 or self._open_recorder is None:
            self.waits = recorder
        elif not isinstance(former, WaitSender):
            self.waits = WaitSender(self._send)
        if isinstance(former, WaitSender) and former is not self.waits:
            former.close()

        if recorder is None or generation.size == 1:
            self._end_receiver(awaits_last=False)
        elif self._receiver is None:
            self._receiver = WaitReceiver(self._listen)
        ACCOUNT.record(None if self.waits is None else self.waits.note_span)

    def _send(self, waits: Sequence[RankSpan]) -> None:
        driver = self._find_driver()
        if driver is not None:
            driver.send_waits(waits)

    def _listen(self) -> None:
        driver = self._find_driver()
        if driver is not None:
            driver.listen()

    def _end_receiver(self, *, awaits_last: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close(awaits_last=awaits_last)

    def note(self, text: str) -> None:
        """Note, if this rank records, that something has happened to the job."""
        recorder = self._in_flight.recorder
        if recorder is not None:
            recorder.note(text)

    def take(self, response: Arrived | Waited) -> None:
        """Note what the sequencer or another rank has sent for the timeline."""
        recorder = self._in_flight.recorder
        if recorder is None:
            return  # it was stopped meanwhile
        if isinstance(response, Arrived):
            recorder.note_arrivals(response)
        else:
            recorder.note_waited(response)

    def close(self, *, awaits_last: bool) -> None:
        """End the recording's threads.

        Args:
            awaits_last: wait first for what the other ranks have noted up to now.
        """
        if self.waits is not None:
            ACCOUNT.record(None)
        if isinstance(self.waits, WaitSender):
            self.waits.close()
        self._end_receiver(awaits_last=awaits_last)

    def abandon(self) -> None:
        """Forget the recorder and the threads, which belong to the parent of this forked child."""
        self._open_recorder = self.waits = self._receiver = self._in_flight.recorder = None
