"""N hosts on this machine, each with its own network, hostname, /tmp and OpenSSH server: a cluster for tests.

    with Lab(2) as lab:                                   # host1, host2, and the host `launcher`, which has no sshd
        done = lab.launcher.run(["hvdrun", "-np", "2", "-H", "host1:1,host2:1", "python", lab.shared / "train.py"])
        assert done.returncode == 0, done.stderr
        assert lab["host1"].processes() == ()             # nothing of the job is left there

In a test: `def test_it(lab: BuildLab) -> None: hosts = lab(2)`, with the fixtures of `tests.lab.fixtures` in the test's
module or its conftest; that skips where no lab can be built, and gives a lab that a test has not changed to the next.

- A host has `run` (to the end: a CompletedProcess with text), `start` (a Popen whose pid is the command's own),
  `processes`, `freeze`, `thaw`, `destroy`, `home`, `network` and `sshd`; commands get a small environment in which
  `python` and `hvdrun` are those of the tests, and HOME a folder with a key that opens all hosts and a known_hosts
  that knows them all. `ssh` and paramiko in the launcher work without any option.
- `host.network` has `cut` (also one way), `ignore` (one host), `unplug`, `slow`, `mend`, `close_door`, `address`;
  `host.sshd` has `stop`, `kill`, `kill_sessions`.
- `Lab([HostPlan("a"), HostPlan("b", families=(Family.IPV6,), decoys=("docker0",))])`: see `tests.lab.plan`.
- All see the machine's files, but each has its own /tmp, /dev/shm and /run. What is to be seen everywhere is put into
  `lab.shared`.
- Process ids: each host counts its own. `pid` of a Popen and of `host.processes()` are the tests' view; what a program
  prints is the host's (`pid_on_host`).
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from tests.lab import wiring
from tests.lab.folder import Folder, sweep
from tests.lab.host import Host
from tests.lab.machine import Machine
from tests.lab.plan import LAUNCHER, LAUNCHER_NUMBER, HostPlan, plan_interfaces
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parent.parent.parent
_PAUSE_SECONDS = 0.01


class Lab:
    """The hosts, from entering to leaving; it is gone as well when this process is killed.

    hosts: how many, named host1, host2 and so on; or their plans.
    launcher: the host that tests start hvdrun on.
    """

    def __init__(self, hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None) -> None:
        plans = [HostPlan(f"host{n}") for n in range(1, hosts + 1)] if isinstance(hosts, int) else list(hosts)
        own = launcher or HostPlan(LAUNCHER, sshd=None)
        self._numbers = {plan.name: (plan, number) for number, plan in enumerate(plans, start=1)}
        self._numbers[own.name] = (own, LAUNCHER_NUMBER)
        self._launcher = own.name
        self._hosts: dict[str, Host] = {}
        self._ended: list[Host] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Build the lab."""
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """Remove it."""
        self._stack.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        """The hosts, the launcher left out."""
        return (host for host in self._hosts.values() if host.name != self._launcher)

    @property
    def launcher(self) -> Host:
        """The host that tests start hvdrun on."""
        return self._hosts[self._launcher]

    @property
    def folder(self) -> Path:
        """What the lab keeps, seen by all hosts; removed with the lab."""
        return self._folder.path

    @property
    def shared(self) -> Path:
        """A folder for what a test wants all hosts to see, at the same path."""
        return self._folder.path / "shared"

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._keeper.pid

    def reboot(self, name: str, number: int | None = None) -> Host:
        """Destroy a host if it is up, and start it again; a new Host.

        number: another one than it had, and with it other addresses.
        """
        self._hosts[name].destroy()
        plan, former = self._numbers[name]
        self._numbers[name] = plan, number or former
        self._ended.append(self._hosts[name])
        self._boot([name])
        return self._hosts[name]

    def is_like(self, other: "Lab") -> bool:
        """Another lab of the same plan could stand in for this one."""
        return (self._numbers, self._launcher) == (other._numbers, other._launcher)

    def is_new(self) -> bool:
        """Whether the lab is as it was when it had been built; what is in `shared` does not count."""
        return self._describe() == self._new

    def part(self, one: str, other: str) -> None:
        """Lose what two hosts send each other; `mend` on the network of both undoes it."""
        self[one].network.ignore(self[other].network)
        self[other].network.ignore(self[one].network)

    def _open(self, stack: contextlib.ExitStack) -> None:
        sweep()
        self._folder = Folder()
        self.shared.mkdir()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.keeper", self.folder, str(os.getpid())],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._folder.lock],
                start_new_session=True,
            )
        finally:
            self._folder.release()
        stack.callback(self._close)
        self._boot(list(self._numbers))
        self._new = self._describe()

    def _describe(self) -> list[object]:
        return [host.describe() for host in self._hosts.values()]

    def _boot(self, names: list[str]) -> None:
        self._folder.write(self._numbers)
        networks = max(len(plan.devices) for plan, _ in self._numbers.values())
        pids = self._ask({"networks": networks, "hosts": [self._order(name) for name in names]})
        for name in names:
            plan, number = self._numbers[name]
            self._hosts[name] = Host(plan, number, self._folder.host(name), pids[name], self.pid)
        for name in names:
            if self._numbers[name][0].sshd is not None:
                self._hosts[name].sshd.begin()
        for name in names:
            plan = self._numbers[name][0]
            if plan.is_closed:
                self._hosts[name].network.close_door()
            if plan.sshd is not None:
                self._hosts[name].sshd.wait()

    def _order(self, name: str) -> dict[str, Any]:
        """What the keeper is to do for a host."""
        plan, number = self._numbers[name]
        interfaces = plan_interfaces(plan, number)
        machine = Machine(
            hostname=name,
            shown=self._folder.shown(name),
            shared=[str(path) for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), self.folder)],
            network=wiring.configure(interfaces),
        )
        cables = [command for interface in interfaces for command in wiring.lay_cable(interface)]
        return {"machine": asdict(machine), "cables": cables}

    def _ask(self, order: dict[str, Any]) -> dict[str, int]:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
        self._keeper.stdin.flush()
        if not select.select([self._keeper.stdout], [], [], LIMIT_SECONDS)[0]:
            raise TimeoutError(f"the lab's keeper has not answered within {LIMIT_SECONDS} s")
        line = self._keeper.stdout.readline()
        answer = json.loads(line or b'{"error": "the keeper of the lab has died"}')
        if "error" in answer:
            raise OSError(answer["error"])
        pids: dict[str, int] = answer["pids"]
        return pids

    def _close(self) -> None:
        """Have the keeper end all; it waits until those who started processes there have heard of their end."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        for host in self._hosts.values():
            host.end_all()
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed, with what was to be said to it
            self._keeper.stdin.close()
        deadline = time.monotonic() + LIMIT_SECONDS
        for host in self._hosts.values():
            host.wait(LIMIT_SECONDS)
        self._keeper.wait(max(deadline - time.monotonic(), _PAUSE_SECONDS))
        self._keeper.stdout.close()
        for host in (*self._ended, *self._hosts.values()):
            host.close()
        self._hosts.clear()
        shutil.rmtree(self.folder, ignore_errors=True)  # done, unless the keeper was killed
