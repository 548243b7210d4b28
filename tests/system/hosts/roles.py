"""Who is who among the processes of a job on the hosts of a lab."""

import os
import signal

import psutil

from tests.lab.host import Host
from tests.lab.process import HostProcess


def find_agents(host: Host) -> list[HostProcess]:
    """The agent of each job on this host."""
    return _drop_children([process for process in host.processes() if process.command[-2:] == ("-m", "hvdrun.agent")])


def find_watchdogs(host: Host) -> list[HostProcess]:
    """The watchdogs of the agents on this host."""
    found = [process for process in host.processes() if "hvdrun.processes.watchdog_process" in process.command]
    return _drop_children(found)


def find_workers(host: Host, word: str) -> list[HostProcess]:
    """The processes with this word on their command line; the launcher, which has it too, and agents are none."""
    return [process for process in host.processes() if word in process.command and "hvdrun" not in str(process)]


def find_launchers(host: Host) -> list[HostProcess]:
    """The guardian of the only detached job of this host, and then its server; the later one may have the lower pid."""
    found = [process for process in host.processes() if "--detach" in process.command]
    guardians = _drop_children(found)
    return [*guardians, *_drop_children([process for process in found if process not in guardians])]


def kill(*processes: HostProcess) -> None:
    """`kill -9` processes that must exist."""
    assert processes
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def _drop_children(found: list[HostProcess]) -> list[HostProcess]:
    """Drop those whose parent is another one: a child has its parent's command line until it executes a program."""
    pids = {process.pid for process in found}
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    return [process for process in found if parents.get(process.pid) not in pids]
