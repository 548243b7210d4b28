"""A host's OpenSSH server, as a test configures, starts, stops and kills it."""

import contextlib
import functools
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.plan import SshdPlan
from tests.lab.process import HostProcess, end
from tests.lab.requirements import find_program
from tests.waiting import LIMIT_SECONDS

_PAUSE_SECONDS = 0.002


class Sshd:
    """The server of one host.

    folder: the host's, which has its key, and to which it writes its log.
    launch: run a command on the host, until it has put itself into the background.
    find: the processes of the host.
    """

    def __init__(
        self,
        plan: SshdPlan,
        folder: Path,
        launch: Callable[[list[str]], None],
        find: Callable[[], tuple[HostProcess, ...]],
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._launch = launch
        self._find = find

    @property
    def pid(self) -> int | None:
        """The process id, on the host, of the server that listens."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self._folder / "sshd.pid").read_text(encoding="ascii"))
        return None

    def begin(self) -> None:
        """Start the server, without waiting until it listens."""
        (self._folder / "sshd.pid").unlink(missing_ok=True)
        config = self._folder / "sshd_config"
        config.write_text(self._configure(), encoding="utf-8")
        self._launch([find_program("sshd"), "-f", str(config), "-E", str(self._folder / "sshd.log")])

    def wait(self) -> None:
        """Wait until the server listens."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.pid is None:
            if time.monotonic() > deadline:
                said = (self._folder / "sshd.log").read_text(encoding="utf-8", errors="replace")
                raise TimeoutError(f"sshd does not listen after {LIMIT_SECONDS} s: {said}")
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """End the server that listens; sessions that are open continue."""
        end([process for process in self.processes() if process.pid_on_host == self.pid], signal.SIGTERM)
        (self._folder / "sshd.pid").unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the server and all its sessions with SIGKILL; what runs in the sessions is left to itself."""
        end(self.processes(), signal.SIGKILL)
        (self._folder / "sshd.pid").unlink(missing_ok=True)

    def kill_sessions(self) -> None:
        """Kill the server's processes for open sessions with SIGKILL; it continues to accept new ones."""
        end([process for process in self.processes() if process.pid_on_host != self.pid], signal.SIGKILL)

    def processes(self) -> tuple[HostProcess, ...]:
        """The server that listens, and those for sessions."""
        return tuple(process for process in self._find() if process.program.startswith("sshd"))

    def _configure(self) -> str:
        """sshd_config; the first line for a setting counts, so that the plan's own stand first."""
        lines = [
            *(f"{name} {value}" for name, value in self._plan.settings.items()),
            f"HostKey {self._folder / 'host_key'}",
            f"PidFile {self._folder / 'sshd.pid'}",
            f"AuthorizedKeysFile {self._folder / 'authorized_keys' if self._plan.accepts_key else 'none'}",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "PrintMotd no",
            "PrintLastLog no",
            *(["PerSourcePenalties no"] if _has_penalties() else []),
        ]
        return "\n".join([*lines, ""])


@functools.cache
def _has_penalties() -> bool:
    """Whether this sshd shuts out for a while a client that failed to log in, as it does from OpenSSH 9.8 on."""
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True).stderr
    found = re.match(r"OpenSSH_(\d+)\.(\d+)", said)
    return found is not None and tuple(map(int, found.groups())) >= (9, 8)
