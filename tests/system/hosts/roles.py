"""Who is who among the processes of a job on the hosts of a lab, and what is left of the job."""

import os
import re
import signal
import time

from tests.lab.host import Host
from tests.lab.process import HostProcess
from tests.system.hosts.cluster import Cluster

_PAUSE_SECONDS = 0.02
_SSHD = re.compile(r": sshd|: \S*/sshd|listener on port")  # a listener of another process is told with the process
_CLEAN_LOOKS = 2  # a process may be between fork and exec while one looks


def find_agents(host: Host) -> list[HostProcess]:
    """The agent of each job on this host."""
    return [process for process in host.processes() if process.command[-2:] == ("-m", "hvdrun.agent")]


def find_guardians(host: Host) -> list[HostProcess]:
    """Their guardians."""
    return [process for process in host.processes() if "hvdrun.agent.guardian" in process.command]


def find_workers(host: Host, word: str) -> list[HostProcess]:
    """The processes with this word on their command line; the launcher, which has it too, and agents are none."""
    return [process for process in host.processes() if word in process.command and "hvdrun" not in str(process)]


def kill(*processes: HostProcess) -> None:
    """`kill -9` processes that must be there."""
    assert processes
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def await_end(cluster: Cluster, limit_seconds: float) -> tuple[str, ...]:
    """What is left of the job after the limit; it returns as soon as nothing is.

    sshd's own processes do not count, nor the ports that they keep for a tunnel: on a host that is cut off they wait
    for a launcher that is gone, and end when the network is mended, or as their own settings have it.
    """
    deadline = time.monotonic() + limit_seconds
    clean_looks = 0
    while True:
        left = tuple(trace for trace in cluster.find_left() if not _SSHD.search(trace))
        clean_looks = 0 if left else clean_looks + 1
        if clean_looks == _CLEAN_LOOKS or (left and time.monotonic() > deadline):
            return left
        time.sleep(_PAUSE_SECONDS)


def end_sessions(cluster: Cluster) -> None:
    """Let sshd forget the connections that a cut has left, so that nothing of the test is left."""
    for host in cluster.lab:
        if host.is_up:
            host.network.mend()
            host.sshd.kill_sessions()
