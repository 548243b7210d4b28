"""The errors of the launcher: each has one sentence and hvdrun's exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rendezvous.core.model import Host
from rendezvous.core.outcome import START_TIMED_OUT

WRONG_USE = 2
OUTPUT_LOST = 74  # EX_IOERR of sysexits.h
CANNOT_LAUNCH = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
_NAMED_HOSTS = 8  # that a sentence names


class HvdrunError(Exception):
    """The base of all errors of this package; the command line exits with `exit_code`."""

    exit_code: ClassVar[int] = CANNOT_LAUNCH
    is_told = False  # it is printed already
    report = b""  # of the job that it has ended: what --outcome writes

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines to print: the sentence, or a headline and details."""
        return (str(self),)


class LaunchError(HvdrunError):
    """Hvdrun could not launch the job. The sentence says what failed, where, and what to do.

    is_refusal: about a host: the job cannot use it beside its other hosts.
    """

    is_refusal: ClassVar[bool] = False


class OutputLostError(HvdrunError):
    """Hvdrun cannot write its output.

    Cause: The disk is full, or the reader of a pipe has ended.
    Remedy: See where the standard output goes, and run hvdrun again, unless a line says that the job goes on.
    """

    exit_code: ClassVar[int] = OUTPUT_LOST

    def __init__(self, reason: str) -> None:
        super().__init__(f"the standard output cannot be written: {reason}; see what it is redirected to.")


class LimitTooLowError(LaunchError):
    """A limit of this machine leaves a launcher or an agent too few threads or open files, or too little memory.

    Cause: `ulimit -u`, `ulimit -v`, `ulimit -n` or pids.max of the control group is low, or other processes use it up.
    Remedy: Raise the limit, or end the other processes. For a limit of the workers, set it in their command.
    """

    def __init__(self, program: str, needed: str, limit: str, remedy: str) -> None:
        super().__init__(f"{program} needs {needed}, but {limit}; {remedy}.")


class ProcHiddenError(LaunchError):
    """A launcher or an agent cannot read /proc, which shows it the processes of its workers.

    Cause: procfs is not mounted in this container or mount namespace, or something else is mounted over it.
    Remedy: Mount it: `mount -t proc proc /proc`.
    """

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program} cannot read /proc ({reason}): mount procfs there (mount -t proc proc /proc).")


class LoopbackDownError(LaunchError):
    """A launcher or an agent cannot reach its own host.

    Cause: The loopback interface is down, as in a new network namespace.
    Remedy: Bring it up: `ip link set lo up`.
    """

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program} cannot reach 127.0.0.1 ({reason}): bring up the loopback (ip link set lo up).")


class BackendRefusedError(LaunchError):
    """The workers' torch cannot communicate through the requested backend.

    Cause: `--backend` or `HVD_BACKEND` names a backend that the torch of the workers was built without.
    Remedy: Install a torch that has it, or leave the option out.
    """

    def __init__(self, backend: str, interpreter: str, objection: str) -> None:
        super().__init__(
            f"the backend {backend!r}, given with --backend or $HVD_BACKEND, cannot be used with {interpreter}: "
            f"{objection.rstrip('.')}."
        )


class BackendNotAskedError(LaunchError):
    """Hvdrun could not find out whether the workers' torch has the requested backend.

    Cause: The Python of the command has no torch or no hvdrun, or it cannot start.
    Remedy: Run `python -c 'import torch, worker_runtime'` with that Python. Or leave the option out.
    """

    def __init__(self, backend: str, interpreter: str, reason: str) -> None:
        super().__init__(
            f"the torch of {interpreter} did not report whether it has the backend {backend!r}, given with --backend "
            f"or $HVD_BACKEND: {reason.rstrip('.')}; check that this Python can import torch and worker_runtime, or "
            "leave the option out."
        )


class HostsFailedError(LaunchError):
    """Several hosts of a job cannot be used.

    Message: COUNT of HOSTS hosts cannot be used:
    Cause: Each line below the headline has its own cause.
    Remedy: See the remedy in each line.

    Args:
        failures, hosts: the error of each, and the number of all hosts of the job.
    """

    def __init__(self, failures: Sequence[LaunchError], hosts: int) -> None:
        self.failures = tuple(failures)
        self._headline = f"{len(failures)} of {hosts} hosts cannot be used:"
        super().__init__(" ".join([self._headline, *map(str, failures)]))

    @property
    def lines(self) -> tuple[str, ...]:
        """The headline, and a line for each of the first hosts."""
        named = [str(failure) for failure in self.failures[:_NAMED_HOSTS]]
        more = len(self.failures) - len(named)
        return (self._headline, *named, *([f"and {more} more"] if more else []))


class HostLostError(LaunchError):
    """An agent has stopped after it received the job.

    Cause: The agent was killed, its machine went down, or the connection broke.
    Remedy: See the reason in the sentence, and the log of that host. An elastic job continues. A static one ends with
        exit code 75: start it again, as a scheduler may do.

    Args:
        host, how: its host, and the reason, half a sentence.
    """

    def __init__(self, host: str, how: str) -> None:
        super().__init__(f"the host {host!r} was lost: {how.rstrip('.')}.")
        self.host = host


class HostLostEarlyError(LaunchError):
    """An agent was started, and stopped before it received the job.

    Cause: The agent was killed, its machine went down, or the connection broke while hvdrun started the job.
    Remedy: See the reason in the sentence, and the log of that host. The exit code is 125, and not the 75 after which a
        scheduler starts a job again: start it yourself.

    Args:
        host, how: its host, and the reason, half a sentence.
    """

    def __init__(self, host: str, how: str) -> None:
        super().__init__(f"the host {host!r} was lost before the job began: {how.rstrip('.')}.")
        self.host = host


class HostFaultError(LaunchError):
    """Hvdrun could not add a host, because of a bug or because this machine lacks resources.

    Cause: hvdrun has a bug, or this machine has no more processes, files or memory for one more host.
    Remedy: Free the resource that the sentence names. Report a bug with the traceback that `-v` prints.
    """

    def __init__(self, host: str, error: Exception) -> None:
        remedy = "" if isinstance(error, OSError) else ", which is a bug in hvdrun, please report it"
        super().__init__(f"the host {host!r} could not be added{remedy}: {type(error).__name__}: {error}.")


class AgentResourceError(LaunchError):
    """A host lacks a resource that its agent needs.

    Cause: That host has no more processes or files, or no room in its temporary folder.
    Remedy: Set `TMPDIR` there to a folder with room, or raise the limits of processes and files.
    """

    def __init__(self, host: str, need: str, error: OSError, remedy: str = "set TMPDIR to a folder with room") -> None:
        super().__init__(f"the agent on {host!r} cannot {need}: {error.strerror or error}; {remedy} on that host.")


class HostsOverdueError(LaunchError):
    """Hvdrun could not connect to some hosts within `--start-timeout`.

    Cause: A firewall drops the connection, the host is down, or a shared file system is slow.
    Remedy: `ssh HOST true` must work without a question. Raise `--start-timeout` for slow hosts.
    """

    exit_code: ClassVar[int] = START_TIMED_OUT

    def __init__(self, hosts: Sequence[str], seconds: float) -> None:
        super().__init__(
            f"no agent runs on {', '.join(hosts)} after {seconds:g} s: check that ssh reaches "
            f"{'it' if len(hosts) == 1 else 'them'}, or give the start more time with --start-timeout."
        )
        self.hosts = tuple(hosts)
        self.seconds = seconds


class UsageError(HvdrunError):
    """The command line asks for something impossible."""

    exit_code: ClassVar[int] = WRONG_USE


class UnknownOptionError(UsageError):
    """An option that hvdrun does not have.

    Cause: The option is misspelled, or belongs to another launcher.
    Remedy: `hvdrun --help all` lists all options.

    Args:
        option, suggestion, remedy: the given one, the one that was meant, and what to do where that is not known.
    """

    def __init__(self, option: str, suggestion: str | None, remedy: str = "hvdrun --help all lists them.") -> None:
        super().__init__(f"there is no option {option!r}: {f'did you mean {suggestion}?' if suggestion else remedy}")
        self.option = option
        self.suggestion = suggestion


class BadValueError(UsageError):
    """An option, or the environment variable that sets it, has a wrong value.

    Message: OPTION takes VALUES, not VALUE.
    Cause: The value has another form or range than the option takes.
    Remedy: Write it as the example in the sentence shows.
    """

    def __init__(self, source: str, wanted: str, found: str) -> None:
        super().__init__(f"{source} takes {wanted}, not {found!r}.")


class VariableNotSetError(UsageError):
    """`-x` names a variable that hvdrun does not have.

    Cause: `-x NAME` forwards a variable that the shell does not export.
    Remedy: Export it, or write `-x NAME=VALUE`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the variable {name!r}, which -x forwards, is not set here: set it, or give it a value, as in "
            "-x NAME=VALUE."
        )


class IdentityFileError(UsageError):
    """The private key of `-i` cannot be read.

    Cause: The file that `-i` names does not exist, or belongs to another user.
    Remedy: Name the private key, not the `.pub` file, and check its permissions.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the private key {str(path)!r}, given with -i, cannot be read: {reason}.")


class DirectoryNotFoundError(UsageError):
    """The workers' working directory cannot be used on this machine.

    Message: the working directory DIRECTORY does not exist on this machine: name another with --wdir.
    Cause: `--wdir` names a file, a folder that this machine does not have, or one that this user may not enter.
    Remedy: Create the folder, open it to this user, or name another with `--wdir`.
    """

    def __init__(self, directory: Path, fault: str = "does not exist") -> None:
        super().__init__(f"the working directory {str(directory)!r} {fault} on this machine: name another with --wdir.")


class OtherUserError(UsageError):
    """A host of this machine has another user.

    Cause: `user@` stands before a name of this machine, where workers run as the user of hvdrun.
    Remedy: Leave `user@` out, or run hvdrun as that user.
    """

    def __init__(self, host: str, user: str, own: str) -> None:
        super().__init__(
            f"{user}@{host} is this machine, where workers run as {own}: leave {user}@ out, or run hvdrun as {user}."
        )


class HostSyntaxError(UsageError):
    """A host in a list cannot be read.

    Cause: A host in `-H` or in a hostfile has another form than `name:slots`.
    Remedy: Write `-H server1:4,server2:4`, or a line `server1 slots=4`.
    """

    def __init__(self, piece: str, reason: str) -> None:
        super().__init__(f"the host {piece!r} cannot be read: {reason}.")
        self.piece, self.reason = piece, reason


class HostFileError(UsageError):
    """A hostfile, or a line of it, cannot be read.

    Message: the hostfile NAME cannot be read: REASON.
    Message: line LINE of the hostfile NAME cannot be read: REASON.
    Cause: The hostfile does not exist, cannot be read, or one of its lines has another form.
    Remedy: Correct the path, or the line that the sentence names.

    Args:
        name, line, reason: the path, the line from 1 on or None for the whole file, and half a sentence.
    """

    def __init__(self, name: str, line: int | None, reason: str) -> None:
        where = f"the hostfile {name!r}" if line is None else f"line {line} of the hostfile {name!r}"
        super().__init__(f"{where} cannot be read: {reason}.")
        self.line, self.reason = line, reason


class NotEnoughSlotsError(UsageError):
    """The hosts offer fewer slots than the job has workers.

    Cause: `-np` is larger than the sum of the slots.
    Remedy: Offer more slots with `-H`, lower `-np`, or add `--oversubscribe`.
    """

    def __init__(self, hosts: Sequence[Host], size: int) -> None:
        offered = sum(host.slots for host in hosts)
        offers = [f"{host.name} {host.slots}" for host in hosts[:_NAMED_HOSTS]]
        if len(hosts) > _NAMED_HOSTS:
            offers.append(f"and {len(hosts) - _NAMED_HOSTS} more")
        super().__init__(
            f"{size} workers do not fit into the {offered} slot{'' if offered == 1 else 's'} of the given hosts "
            f"({', '.join(offers)}): offer more slots, ask for -np {offered}, or allow it with --oversubscribe."
        )


class TooFewSlotsNowError(LaunchError):
    """The discovery script prints hosts with fewer slots than the job starts with.

    Cause: The discovery script prints fewer slots than the job starts with.
    Remedy: A job waits for more until `--elastic-timeout`. Lower `-np` or `--min-np`, or let the script print more.
    """

    def __init__(self, offered: int, size: int) -> None:
        super().__init__(
            f"the hosts that the script names now offer {offered} of the {size} slot{'' if size == 1 else 's'} that "
            "the job starts with: it would wait for more, for as long as --elastic-timeout allows."
        )


class CommandNotFoundError(HvdrunError):
    """The command is in none of the searched folders.

    Cause: The command is misspelled, or is not on the `PATH` of the host.
    Remedy: Give its path, or extend `PATH`, on other hosts with `--remote-prefix`.
    """

    exit_code: ClassVar[int] = NOT_FOUND

    def __init__(self, name: str, places: Sequence[str], suggestion: str | None = None) -> None:
        where = f"looked in {', '.join(places)}" if places else "PATH is empty"
        remedy = f"; did you mean {suggestion}?" if suggestion else "."
        super().__init__(f"the command {name!r} was not found: {where}{remedy}")


class CommandNotExecutableError(HvdrunError):
    """The command cannot be executed.

    Cause: The file has no permission to be executed, is a script without `#!`, or its folder no longer exists.
    Remedy: `chmod +x` it, or name the interpreter: `hvdrun -np 2 python script.py`.
    """

    exit_code: ClassVar[int] = NOT_EXECUTABLE

    def __init__(self, path: str, reason: str, suggestion: str | None = None) -> None:
        remedy = f"; did you mean {suggestion}?" if suggestion else "."
        super().__init__(f"the command {path!r} cannot be executed: {reason}{remedy}")


class ScriptNotFoundError(UsageError):  # its exit code, 2, is that of Python for a missing script
    """The script that Python is to run does not exist.

    Message: the script SCRIPT that Python is to run does not exist in DIRECTORY.
    Cause: The script lies in another folder than the working directory, or is a link to no file.
    Remedy: Give its path, or the working directory with `--wdir`.
    """

    def __init__(
        self, script: str, directory: Path, fault: str = "does not exist", suggestion: str | None = None
    ) -> None:
        where = "" if script.startswith("/") else f" in {str(directory)!r}"
        remedy = f"; did you mean {suggestion}?" if suggestion else "."
        super().__init__(f"the script {script!r} that Python is to run {fault}{where}{remedy}")
