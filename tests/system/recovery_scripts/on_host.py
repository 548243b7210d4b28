"""Trains as `train.py` does, on one of several hosts that count their processes each by itself.

Each process writes into a folder of its own within the one that is named: what it writes, when it stops for a loss
among it. It takes its time for a step, so that a test can look on, and keeps its interpreter busy on order.
"""

import ctypes
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.system.recovery_scripts import train
from tests.system.recovery_scripts.recipe import Recipe
from tests.system.recovery_scripts.stage import Stage

STEP_SECONDS = 0.05
BUSY = "busy"  # a file of this name, with the name of a host behind it, says for how many seconds


class Reporter(logging.Handler):
    """Writes down what the runtime says of its recovery, and when."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.DEBUG)
        self._stage = stage

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message down."""
        self._stage.note("recovery", text=record.getMessage())


class HostTrainer(train.Trainer):
    """Takes its time."""

    def __init__(self, recipe: Recipe, stage: Stage) -> None:
        super().__init__(recipe, stage)
        logger = logging.getLogger("hvd.recovery")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Reporter(stage))
        logger.propagate = False

    def train(self, step: int, samples: Sequence[Sequence[int]], epoch: int = 0) -> None:
        """Make one step with these samples."""
        time.sleep(STEP_SECONDS)
        self._be_busy()
        super().train(step, samples, epoch)

    def _be_busy(self) -> None:
        """Be in a C call, with the interpreter's lock, once for each file that asks for it."""
        if WISH.exists():
            seconds = float(WISH.read_text(encoding="ascii"))
            WISH.unlink()
            self.stage.note("busy", seconds=seconds)
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
            self.stage.note("idle")


if __name__ == "__main__":
    NOTES = Path(sys.argv[1])
    WISH = NOTES / f"{BUSY}-{socket.gethostname()}"
    own = NOTES / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    own.mkdir()
    sys.argv[1] = str(own)
    train.main(HostTrainer)
