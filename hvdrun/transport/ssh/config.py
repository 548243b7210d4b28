"""The ssh configuration of a host, as OpenSSH's own program prints it: `ssh -G HOST`.

paramiko.SSHConfig is not used: it has no Include, no comments behind arguments and no check of values, and its
`Match exec` has no limit of time.
"""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from shutil import which

from hvdrun.processes.child import OutputFile
from hvdrun.transport.ssh.ssh_errors import BadSshConfigError
from hvdrun.transport.user import has_account, name_user

DEFAULT_PORT = 22
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
LIMIT_SECONDS = 30.0  # for one host: a command of `Match exec`, or a name server of CanonicalizeHostname, may hang
_CLOSE_SECONDS = 2.0  # for a process to end after a signal
_SYSTEM = Path("/etc/ssh/ssh_config")
_USED = frozenset({  # of 80 keywords that ssh prints
    "addressfamily", "bindaddress", "bindinterface", "casignaturealgorithms", "certificatefile", "ciphers",
    "connecttimeout", "globalknownhostsfile", "hashknownhosts", "hostkeyalgorithms", "hostkeyalias", "hostname",
    "identitiesonly", "identityagent", "identityfile", "kexalgorithms", "macs", "port", "preferredauthentications",
    "proxycommand", "proxyjump", "proxyusefdpass", "pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes",
    "pubkeyauthentication", "requiredrsasize", "revokedhostkeys", "stricthostkeychecking", "user", "userknownhostsfile",
})  # fmt: skip
# Runs a command, and kills its session after so many seconds, also if hvdrun was killed. The program `timeout` is not
# everywhere, and has other options elsewhere.
_LIMITER = """
import os, sys, _signal
_signal.signal(_signal.SIGALRM, lambda *_: os.killpg(0, _signal.SIGKILL))
_signal.alarm(int(sys.argv[1]))
code = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)[1])
os._exit(code if code >= 0 else 128 - code)
"""
_SUMMARY = "terminating, "  # begins the last line of ssh's errors, after the name of a file

Settings = Mapping[str, Sequence[str]]


class SshConfig:
    """The configuration of all hosts; several threads may look hosts up.

    Args:
        home: the user's home folder, in which ssh finds the user's file.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str | None, int | None], Future[Settings]] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> Settings:
        """The configuration of a host: lower-case keyword -> values, at least those of `_default`.

        The given user and port replace the configured ones, also in the conditions of sections. Each host is looked up
        once, and again after an error. Blocks while commands of `Match exec` run.

        Raises:
            BadSshConfigError: the configuration is wrong, or cannot be read.
            OSError: no process can be started.
        """
        key = host, user, port
        with self._lock:
            is_first = key not in self._found
            found = self._found.setdefault(key, Future())
        if is_first:
            try:
                found.set_result(self._ask(host, user, port))
            except BaseException as error:
                del self._found[key]
                found.set_exception(error)
                raise
        return found.result()

    def close(self) -> None:
        """Kill the lookups that run, with their commands; start no more."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                _kill(process)

    def _ask(self, host: str, user: str | None, port: int | None) -> Settings:
        own = self.home / ".ssh" / "config"
        if which("ssh") is None:
            _refuse(host, (own, _SYSTEM), "is not installed here; install OpenSSH's client")
            return _default(host, user, port)
        # The machine's file always comes with ssh, and does not count.
        if not has_account():
            reason = f"needs an account, and the password database has none with the number {os.getuid()}; add one"
            _refuse(host, (own,), reason)
            return _default(host, user, port)

        # -T: ssh looks for no terminal.
        words = [sys.executable, "-ISc", _LIMITER, str(math.ceil(LIMIT_SECONDS + _CLOSE_SECONDS)), "ssh", "-G", "-T"]
        if user is not None:
            words += ["-l", user]
        if port is not None:
            words += ["-p", str(port)]
        with closing(OutputFile()) as errors:
            code, output = self._run(host, [*words, "--", host], errors)

        settings: dict[str, list[str]] = {}
        for line in os.fsdecode(output).split("\n"):
            keyword, _, value = line.partition(" ")
            if keyword in _USED:
                settings.setdefault(keyword, []).append(value)

        # Another program may be called ssh.
        if code != 0 or "hostname" not in settings:
            reason = _describe(errors.read_tail())
            raise BadSshConfigError(host, reason or f"'ssh -G {host}' ended with exit code {code}")
        return settings

    def _run(self, host: str, words: Sequence[str], errors: OutputFile) -> tuple[int, bytes]:
        """Run ssh; return its exit code and its output.

        It leads a session, so that its limit and `close` also end its commands.
        """
        with self._lock:
            if self._is_closed:
                raise BadSshConfigError(host, "hvdrun is ending")
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors.fileno(), start_new_session=True
            )
            self._running.add(process)

        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            reason = f"'ssh -G {host}' did not end within {LIMIT_SECONDS:g} s; does a command of Match exec hang?"
            raise BadSshConfigError(host, reason) from error
        finally:
            with self._lock:
                self._running.discard(process)
                _kill(process)
            with suppress(subprocess.TimeoutExpired):  # the kernel ends it later
                process.wait(_CLOSE_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
        return process.returncode, output


def first(settings: Settings, keyword: str) -> str | None:
    """The first value of a keyword; None where it has none."""
    if keyword in settings:
        return settings[keyword][0]
    return None


def _default(host: str, user: str | None, port: int | None) -> Settings:
    """What ssh says of a host without a configuration."""
    return {
        "hostname": [host.lower()],
        "port": [str(port or DEFAULT_PORT)],
        "user": [user or name_user()],
        "identityfile": DEFAULT_KEYS,
        "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
        "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
    }


def _refuse(host: str, files: Sequence[Path], reason: str) -> None:
    """Raise an error if one of these files exists."""
    for file in files:
        if os.access(file, os.F_OK):
            raise BadSshConfigError(host, f"the program ssh, which reads {file}, {reason}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the session of a process that has not been reaped."""
    with suppress(ProcessLookupError):  # it ended meanwhile
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _describe(errors: bytes) -> str:
    """What ssh wrote, in one line, without its summary."""
    lines = [line.strip().rstrip(".") for line in errors.decode(errors="replace").splitlines()]
    return "; ".join(line for line in lines if line and _SUMMARY not in line)
