"""Looks about once a second which hosts there are, and tells what has changed; the last good answer stands."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from hvdrun.hosts.discovery_script import DiscoveryFailedError, DiscoveryImpossibleError
from hvdrun.spec.hosts import HostList

PERIOD_SECONDS = 1.0
PATIENCE_SECONDS = 5.0  # with one answer, before a user is told who is waited for


class Source(Protocol):
    """Who knows the hosts (`hvdrun.hosts.discovery_script.DiscoveryScript`)."""

    async def ask(self) -> HostList:
        """The hosts there are now.

        Raises:
            DiscoveryFailedError: nobody knows.
        """

    def refuse(self, failure: DiscoveryFailedError) -> DiscoveryImpossibleError:
        """What to raise where there is no use in asking again."""


class Lookout:
    """Asks one source again and again; belongs to one event loop.

    found: takes each answer that is not the one before.
    complain: takes a sentence when the answers begin to fail or to be slow, fail in another way, or come again.
    """

    def __init__(
        self,
        source: Source,
        found: Callable[[HostList], None],
        complain: Callable[[str], None],
        *,
        period_seconds: float = PERIOD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._source = source
        self._found = found
        self._complain = complain
        self._period_seconds = period_seconds
        self._patience_seconds = patience_seconds
        self._last: HostList | None = None
        self._has_failed = False  # and that was told
        self._kind = ""  # of the failure that was told last, and was the last word
        self._is_slow = False  # the present answer, or the last

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            DiscoveryImpossibleError: the source cannot be asked at all, as its first answer shows.
        """
        is_first = True
        while True:
            began = time.monotonic()
            try:
                hosts = await self._ask()
            except DiscoveryFailedError as failure:
                if is_first and failure.is_hopeless:
                    raise self._source.refuse(failure) from failure
                self._note_failure(failure)
            else:
                self._note_answer(hosts)
            is_first = False
            await asyncio.sleep(max(0.0, began + self._period_seconds - time.monotonic()))

    async def _ask(self) -> HostList:
        """The next answer; where it is slow, as the one before was not, that is told while it is waited for."""
        was_slow, self._is_slow = self._is_slow, False
        timer = asyncio.get_running_loop().call_later(self._patience_seconds, self._note_slowness, was_slow)
        try:
            return await self._source.ask()
        finally:
            timer.cancel()

    def _note_slowness(self, was_slow: bool) -> None:  # noqa: FBT001 - a call of the loop's has no keywords
        self._is_slow = True
        if not was_slow:
            self._kind = ""
            running = f"the host discovery script has been running for {self._patience_seconds:g} s"
            self._complain(f"{running}; {self._describe_stand()}.")

    def _describe_stand(self) -> str:
        return "the job waits for its answer" if self._last is None else "the hosts that it named last stay"

    def _note_failure(self, failure: DiscoveryFailedError) -> None:
        if failure.kind == self._kind:
            return
        self._has_failed, self._kind = True, failure.kind
        self._complain(f"the host discovery script failed: {failure}; {self._describe_stand()}.")

    def _note_answer(self, hosts: HostList) -> None:
        if self._has_failed:
            self._has_failed, self._kind = False, ""
            self._complain("the host discovery script names hosts again.")
        if hosts != self._last:
            self._last = hosts
            self._found(hosts)
