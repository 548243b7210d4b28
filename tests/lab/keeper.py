"""The process in whose care a lab lives: `python -m tests.lab.keeper FOLDER OWNER`, started by `tests.lab.lab`.

It is the switch as well: the bridges are in its network namespace. Hosts are its children, each the first process of
its own process-id namespace, and die with it by the kernel's hand. No namespace has a name, so that none outlives its
processes. It ends when its input does, or when the owner dies however that happens, and removes the lab's folder last.

It is asked in lines of JSON, and answers each with one: {"networks": n, "hosts": [...]} with {"pids": {name: pid}} or
{"error": sentence}.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.lab import kernel, machine, wiring
from tests.lab.machine import Machine

END_SECONDS = 10.0
BOOT_SECONDS = 30.0
_READY = b"ready"
_TEXT_LIMIT = 65536


class Switch:
    """The bridges, and the hosts that are joined by them."""

    def __init__(self) -> None:
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
        kernel.unshare(kernel.NEW_NETWORK)
        self._networks = 0
        self._hosts: dict[int, int] = {}  # a descriptor of the first process -> its id

    @property
    def descriptors(self) -> list[int]:
        """Each becomes readable when its host has ended."""
        return list(self._hosts)

    def boot(self, order: dict[str, Any]) -> dict[str, int]:
        """Make hosts, all at the same time; raises OSError with what went wrong."""
        hosts = order["hosts"]
        started = {host["machine"]["hostname"]: self._fork(Machine(**host["machine"])) for host in hosts}
        cables: list[str] = []
        for network in range(self._networks, order["networks"]):
            cables += wiring.lay_bridge(network)
        self._networks = max(self._networks, order["networks"])
        for host in hosts:
            pid, wire = started[host["machine"]["hostname"]]
            _hear(host["machine"]["hostname"], wire)
            cables += [command.replace(wiring.PID, str(pid)) for command in host["cables"]]
        machine.feed("ip", "-batch", "-", text="\n".join(cables))
        for _, wire in started.values():
            wire.send(_READY)
        for name, (_, wire) in started.items():
            with wire:
                _hear(name, wire)
        return {name: pid for name, (pid, _) in started.items()}

    def bury(self, descriptor: int) -> None:
        """Let go of a host that has ended."""
        os.waitpid(self._hosts.pop(descriptor), 0)
        os.close(descriptor)

    def close(self) -> None:
        """End all hosts, and wait until none of their processes is left."""
        for descriptor in self._hosts:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        while self._hosts and (left := deadline - time.monotonic()) > 0:
            for descriptor in select.select(self.descriptors, [], [], left)[0]:
                self.bury(descriptor)

    def _fork(self, plan: Machine) -> tuple[int, socket.socket]:
        """A new first process: its id, and the wire on which it says that its namespaces, then that all is made."""
        wire, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wire.settimeout(BOOT_SECONDS)
        kernel.unshare(kernel.NEW_PIDS)
        pid = os.fork()
        if pid == 0:
            _become(plan, far_end)
        kernel.enter(self._own_pids, kernel.NEW_PIDS)
        self._hosts[os.pidfd_open(pid)] = pid
        far_end.close()
        return pid, wire


def _become(plan: Machine, wire: socket.socket) -> NoReturn:
    """What the first process of a host does; it never returns to what the keeper does."""
    try:
        with Path(os.devnull).open("r+b") as nowhere:
            for standard in (sys.stdin, sys.stdout):
                os.dup2(nowhere.fileno(), standard.fileno())
        machine.leave()
        wire.send(_READY)
        if wire.recv(len(_READY)) == _READY:
            machine.settle(plan)
            wire.send(_READY)
            os.dup2(sys.stdin.fileno(), sys.stderr.fileno())
            os.closerange(sys.stderr.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            machine.rest()
    except BaseException as error:  # noqa: BLE001 - reported to the keeper, whatever it is
        with contextlib.suppress(OSError):
            wire.send(f"{type(error).__name__}: {error}".encode()[:_TEXT_LIMIT])
    finally:
        os._exit(1)


def _hear(name: str, wire: socket.socket) -> None:
    """Wait for a host's next word; raises OSError with what it says when it is not ready."""
    said = wire.recv(_TEXT_LIMIT)
    if said != _READY:
        raise OSError(f"host {name} could not be made: {said.decode() or 'it died'}")


def serve(owner: int, switch: Switch) -> None:
    """Answer, until the input or the owner has ended."""
    arrived = b""
    while True:
        readable = select.select([sys.stdin.fileno(), owner, *switch.descriptors], [], [])[0]
        for descriptor in set(readable) & set(switch.descriptors):
            switch.bury(descriptor)
        if owner in readable:
            return
        if sys.stdin.fileno() in readable:
            chunk = os.read(sys.stdin.fileno(), _TEXT_LIMIT)
            if not chunk:
                return
            *lines, arrived = (arrived + chunk).split(b"\n")
            for line in lines:
                sys.stdout.write(json.dumps(_answer(switch, json.loads(line))) + "\n")
                sys.stdout.flush()


def _answer(switch: Switch, order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"pids": switch.boot(order)}
    except OSError as error:
        return {"error": str(error)}


def main(folder: Path, owner: int) -> None:
    """Keep a lab."""
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            descriptor = os.pidfd_open(owner)
        except ProcessLookupError:
            return
        switch = Switch()
        stack.callback(switch.close)
        serve(descriptor, switch)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
