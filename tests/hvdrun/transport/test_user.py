"""The account of a process, also one that no password database knows."""

import os
import pwd
from pathlib import Path

import pytest

from hvdrun.transport.user import find_home, name_user


@pytest.mark.parametrize(("variables", "name"), [({"USER": "me"}, "me"), ({}, "54321")])
def test_an_unknown_account_is_named_by_its_variables_or_its_number(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert name_user() == name
    assert find_home() == Path("/nonexistent")
    monkeypatch.setenv("HOME", "/some/home")
    assert find_home() == Path("/some/home")


def test_name_and_home_of_a_known_account_are_those_of_ssh_whatever_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER", "somebody else")
    monkeypatch.setenv("HOME", "/some/home")
    known = pwd.getpwuid(os.getuid())
    assert (name_user(), find_home()) == (known.pw_name, Path(known.pw_dir))
