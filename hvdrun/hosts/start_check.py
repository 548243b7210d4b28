"""The short examination at the start of a job on several hosts: what is wrong is printed, and the job begins.

It runs beside the connectivity check, and nothing waits for it.
"""

import os
import time
from collections.abc import Callable

from hvdrun.hosts.findings import Host, diagnose_at_start
from hvdrun.spec.facts import Facts
from hvdrun.spec.jobspec import JobSpec
from rendezvous.wire.orders import Examine, Order


class StartCheck:
    """Asks the hosts of a job, and prints what is wrong with them.

    Args:
        spec: the job.
        send: sends an order to a host's agent.
        notice: prints a sentence.
    """

    def __init__(self, spec: JobSpec, send: Callable[[str, Order], None], notice: Callable[[str], None]) -> None:
        self._spec = spec
        self._send = send
        self._notice = notice
        self._asked: dict[str, float] = {}  # when, in seconds since 1970
        self._hosts: dict[str, Host] = {}
        self._printed: set[str] = set()

    def ask(self, host: str) -> None:
        """Ask the agent of a host that has just come."""
        self._asked[host] = time.time()
        self._send(host, Examine(os.fspath(self._spec.workers.directory), is_short=True))

    def note(self, host: str, facts: str) -> None:
        """Take the answer of a host; the findings follow when no other is awaited."""
        if host not in self._asked:
            return

        asked, now = self._asked.pop(host), time.time()
        read = Facts.decode(facts)
        self._hosts[host] = Host(
            read,
            is_here=not self._spec.is_remote(host),
            clock_offset=read.clock - (asked + now) / 2,
            uncertainty=(now - asked) / 2,
        )
        self._tell_if_complete()

    def forget(self, host: str) -> None:
        """The host is lost, or no longer of the job: its answer is not awaited."""
        self._hosts.pop(host, None)
        if self._asked.pop(host, None) is not None:
            self._tell_if_complete()

    def _tell_if_complete(self) -> None:
        if self._asked:
            return
        places = {known.name: place for place, known in enumerate(self._spec.workers.hosts)}
        in_order = sorted(self._hosts, key=lambda name: places.get(name, len(places)))
        for finding in diagnose_at_start({name: self._hosts[name] for name in in_order}):
            fault = finding.what.partition(", but ")[0]  # which hosts are right may change with each that comes
            if fault not in self._printed:
                self._printed.add(fault)
                self._notice(f"{finding.what}: {finding.remedy}")
