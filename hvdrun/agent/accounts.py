"""What the time of this host's workers is spent on, as the launcher hears it: at a worker's end, and now and then."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rendezvous.bootstrap import name_account_file
from rendezvous.core.model import Worker
from rendezvous.wire.account_file import read_account
from rendezvous.wire.accounts import Account, AccountsReported

REPORT_SECONDS = 30.0
_MOST_REPORTED = 100  # workers, in a message


class Accounts:
    """The accounts of one host's workers.

    Args:
        socket: the agent's; each worker that measures has a file beside it.
        tell: sends the launcher a message.
    """

    def __init__(self, socket: Path, tell: Callable[[AccountsReported], None]) -> None:
        self._socket = socket
        self._tell = tell
        self._began: dict[Worker, float] = {}

    def begin(self, worker: Worker, at: float) -> None:
        """Note a worker that was started, and when that was ordered: in seconds of the monotonic clock."""
        self._began[worker] = at

    def end(self, worker: Worker) -> None:
        """Report the account of a worker that was reaped, and remove its file."""
        began = self._began.pop(worker)
        account = self._read(worker, began, has_ended=True)
        with contextlib.suppress(OSError):  # the worker has none, or has put something else there
            name_account_file(self._socket, worker).unlink()
        self._tell(AccountsReported((account,)))

    def report(self) -> None:
        """Report the accounts of the workers that run."""
        accounts = [self._read(worker, began) for worker, began in self._began.items()]
        for start in range(0, len(accounts), _MOST_REPORTED):
            self._tell(AccountsReported(tuple(accounts[start : start + _MOST_REPORTED])))

    async def report_often(self) -> NoReturn:
        """Report them, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self.report()

    def _read(self, worker: Worker, began: float, *, has_ended: bool = False) -> Account:
        path = name_account_file(self._socket, worker)
        return read_account(path, worker, began, time.monotonic(), has_ended=has_ended)
