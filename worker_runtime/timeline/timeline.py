"""Which timeline this process is to write, wherever it is rank 0, and the recorder that writes it."""

import logging
from pathlib import Path

from worker_runtime.timeline.recorder import Recorder

_LOG = logging.getLogger("hvd")


class Timeline:
    """The timeline of one process.

    is_wanted: it was started, and not stopped.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._path = Path()
        self._job = ""
        self._mark_cycles = False
        self._restarts = 0
        self._recorder: Recorder | None = None

    def start(self, path: Path, job: str, *, mark_cycles: bool, restarts: int = 0) -> None:
        """Want a timeline in this file; see `Recorder`.

        Args:
            path: the file.
            job: the name of the job.
            mark_cycles: mark when collectives were released.
            restarts: how many times all workers were started again before.
        """
        self.stop()
        self._restarts = restarts
        self._path = Path.cwd() / path
        self._job = job
        self._mark_cycles = mark_cycles
        self.is_wanted = True

    def stop(self) -> None:
        """Want it no longer, and complete its file."""
        self.is_wanted = False
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    def open(self) -> Recorder:
        """The recorder, which is created when it is first needed.

        Raises:
            OSError: the file cannot be written, and is wanted no longer.
        """
        if self._recorder is None:
            try:
                self._recorder = Recorder(self._path, self._job, mark_cycles=self._mark_cycles)
            except OSError:
                self.stop()
                raise
            if self._restarts:
                self._recorder.note(f"restart {self._restarts}: all workers were started again")
        return self._recorder

    def open_again(self, interruption: str | None = None) -> Recorder | None:
        """The recorder of a process that has become rank 0; None, after one warning, if it cannot write the file.

        Args:
            interruption: why it has, if the former one was lost, which could not note that.
        """
        if not self.is_wanted:
            return None
        is_new = self._recorder is None
        try:
            recorder = self.open()
        except OSError as error:
            _LOG.warning("the timeline ends: %s cannot be written: %s", error.filename, error.strerror)
            return None
        if is_new and interruption is not None:
            recorder.note(f"interrupted: {interruption}")
        return recorder
