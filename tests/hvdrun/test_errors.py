"""Errors of the launcher: each knows its exit code and says one sentence."""

from pathlib import Path

import pytest

from hvdrun import errors
from rendezvous.core.model import Host

EXAMPLES = [
    (errors.LaunchError("the agent on a did not start: x."), 125),
    (errors.UsageError("no."), 2),
    (errors.UnknownOptionError("--grcae", "--grace"), 2),
    (errors.UnknownOptionError("--grcae", None), 2),
    (errors.BadValueError("-np", "a number", "x\ny"), 2),
    (errors.HostSyntaxError("a\nb", "why"), 2),
    (errors.HostFileError("hosts\n", 3, "why"), 2),
    (errors.NotEnoughSlotsError([Host("a", 1)], 2), 2),
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
    defined = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.HvdrunError)
    }
    assert defined - {errors.HvdrunError} == {type(error) for error, _ in EXAMPLES}
