"""One machine's part in a survey: it lists its addresses, answers there, and probes the others."""

import os
from collections.abc import Sequence

from hvdrun.network.interfaces import list_addresses
from hvdrun.network.listener import Listener
from hvdrun.network.probe import probe
from rendezvous.wire.orders import Found, Probed, ProbeTarget


class Participant:
    """Takes part under the name `host`, until it is closed; loopback addresses take part only in tests."""

    def __init__(self, token: bytes, host: str, *, loopback: bool = False) -> None:
        self._token = token
        self._loopback = loopback
        self._listener = Listener(token, host)

    async def look(self) -> Found:
        """Listen on all addresses, and say which they are; once."""
        listening = await self._listener.open(list_addresses(loopback=self._loopback))
        return Found(listening, len(os.sched_getaffinity(0)), self._token)

    async def probe(self, targets: Sequence[ProbeTarget]) -> Probed:
        """Say which of these are reached from here."""
        return Probed(await probe(self._token, targets), self._token)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()
