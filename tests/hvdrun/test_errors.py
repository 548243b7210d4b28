"""Errors of the launcher: each knows its exit code and says one sentence."""

from pathlib import Path

import pytest

from hvdrun import errors
from rendezvous.core.model import Host

EXAMPLES = [
    (errors.LaunchError("the agent on a did not start: x."), 125),
    (errors.OutputLostError("No space left on device"), 74),
    (errors.BackendRefusedError("ucc", "/usr/bin/python", "torch has none"), 125),
    (errors.BackendNotAskedError("ucc", "/usr/bin/python", "it ended."), 125),
    (errors.HostsFailedError([errors.LaunchError("a is down."), errors.LaunchError("b is away.")], 3), 125),
    (errors.HostLostEarlyError("a", "its agent ended"), 125),
    (errors.HostLostError("a", "its agent ended."), 125),
    (errors.HostFaultError("a", OSError(24, "Too many open files")), 125),
    (errors.AgentResourceError("a", "start its watchdog", OSError(11, "Resource temporarily unavailable")), 125),
    (errors.HostsOverdueError(["a", "b"], 30), 124),
    (errors.UsageError("no."), 2),
    (errors.UnknownOptionError("--grcae", "--grace"), 2),
    (errors.UnknownOptionError("--grcae", None), 2),
    (errors.BadValueError("-np", "a number", "x\ny"), 2),
    (errors.VariableNotSetError("A\nB"), 2),
    (errors.IdentityFileError(Path("/a\nb"), "why"), 2),
    (errors.DirectoryNotFoundError(Path("/a\nb")), 2),
    (errors.OtherUserError("localhost", "you", "me"), 2),
    (errors.HostSyntaxError("a\nb", "why"), 2),
    (errors.HostFileError("hosts\n", 3, "why"), 2),
    (errors.NotEnoughSlotsError([Host("a", 1)], 2), 2),
    (errors.TooFewSlotsNowError(1, 2), 125),
    (errors.LimitTooLowError("the launcher", "16 threads", "can start only 3", "raise it"), 125),
    (errors.ProcHiddenError("the agent", "No such file or directory"), 125),
    (errors.LoopbackDownError("the agent", "Network is unreachable"), 125),
    (errors.CommandNotFoundError("x\n", ["/bin"]), 127),
    (errors.CommandNotFoundError("x", [], "./x"), 127),
    (errors.CommandNotExecutableError("/x\n", "why"), 126),
    (errors.ScriptNotFoundError("x.py\n", Path("/work")), 2),
]


@pytest.mark.parametrize(("error", "code"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_each_error_is_one_line_with_its_exit_code(error: errors.HvdrunError, code: int) -> None:
    assert error.exit_code == code
    assert len(str(error).splitlines()) == 1
    assert str(error)[-1] in ".?"


def test_every_error_of_the_module_is_tried_here() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type)}
    defined = {value for value in classes if issubclass(value, errors.HvdrunError)} - {errors.HvdrunError}
    assert defined == {type(error) for error, _ in EXAMPLES}


def test_of_very_many_hosts_that_failed_the_first_are_named() -> None:
    error = errors.HostsFailedError([errors.LaunchError(f"{n} is down.") for n in range(100)], 200)
    assert len(error.lines) == 10
    assert (error.lines[0], error.lines[-1]) == ("100 of 200 hosts cannot be used:", "and 92 more")
