"""Finds out which of many hosts are this machine, beside the loop; each name is looked up once."""

import asyncio

from hvdrun.hosts import reach
from hvdrun.spec.hosts import HostList
from hvdrun.transport.ssh.threads import in_thread

AT_ONCE = 32  # a name that no server knows takes seconds
PATIENCE_SECONDS = 1.0  # with the names of one list


class Lookups:
    """The names that were looked up, and those that are being; belongs to one event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._found: dict[str, bool] = {}
        self._pending: dict[str, asyncio.Task[None]] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """The names that are being looked up."""
        return tuple(self._pending)

    def is_local(self, name: str) -> bool:
        """This name, which was looked up, is this machine's."""
        return self._found[name]

    async def find_known(self, listed: HostList) -> HostList:
        """Those of the hosts whose names have been looked up; for the others' it waits, but not for long."""
        for host in listed.hosts:
            if host.name not in self._found and host.name not in self._pending:
                self._pending[host.name] = asyncio.create_task(self._look_up(host.name))
        waiting = [self._pending[host.name] for host in listed.hosts if host.name in self._pending]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
        return HostList(tuple(host for host in listed.hosts if host.name in self._found), listed.users)

    async def close(self) -> None:
        """Look no more up."""
        tasks = tuple(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, name: str) -> None:
        try:
            async with self._places:
                self._found[name] = await in_thread(lambda: reach.is_local(name))
        finally:
            del self._pending[name]
