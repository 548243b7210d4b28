"""What a request means on this machine."""

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hvdrun.errors import CommandNotFoundError, DirectoryNotFoundError, LaunchError, OtherUserError, ScriptNotFoundError
from hvdrun.hosts.preparation import add_hosts, check_timeline, find_remote, prepare
from hvdrun.spec.command import LookupContext
from hvdrun.spec.hosts import HostList
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.remote import Remote
from rendezvous.core.model import Host
from tests.hvdrun.specs import build_spec, with_fields

OWN_PYTHON = sys.executable


@pytest.fixture
def python(tmp_path: Path) -> str:
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def context(tmp_path: Path, python: str) -> LookupContext:
    return LookupContext(tmp_path, str(Path(python).parent), OWN_PYTHON)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    """A job with two workers here and two elsewhere."""
    (tmp_path / "train.py").touch()
    return build_spec(("python", "train.py"), 4, (Host("here", 2), Host("there", 2)), tmp_path)


def is_here(host: str) -> bool:
    return host == "here"


def test_a_job_on_this_machine_keeps_its_python_as_it_was_typed(spec: JobSpec, context: LookupContext) -> None:
    local = with_fields(spec, hosts=(Host("here", 4),))
    assert prepare(local, context, is_here) == (local, ())


def test_with_another_host_all_hosts_use_this_machines_python(
    spec: JobSpec, context: LookupContext, python: str
) -> None:
    prepared, details = prepare(spec, context, is_here)
    assert prepared.workers.command == (python, "train.py")
    assert prepared.remote == Remote(frozenset({"there"}), (python, "train.py"), python)
    assert prepared.variables[b"PWD"] == os.fsencode(spec.workers.directory)
    assert any(python in detail for detail in details)


@pytest.mark.parametrize(
    ("typed", "there"), [("python", "/there/python"), ("{python}", "{python}")], ids=["bare", "with its path"]
)
def test_another_python_for_the_other_hosts_takes_the_place_of_a_bare_one(
    spec: JobSpec, context: LookupContext, python: str, typed: str, there: str
) -> None:
    command = typed.format(python=python), "train.py"
    prepared, _ = prepare(with_fields(spec, command=command, python="/there/python"), context, is_here)
    assert prepared.workers.command == (python, "train.py")
    remote_command = there.format(python=python), "train.py"
    assert prepared.remote == Remote(frozenset({"there"}), remote_command, "/there/python", python="/there/python")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"command": ("no-such-program",)}, CommandNotFoundError),
        ({"command": ("./no-such-program",)}, CommandNotFoundError),
        ({"command": ("python", "missing.py")}, ScriptNotFoundError),
        ({"directory": Path("/missing")}, DirectoryNotFoundError),
        ({"directory": Path(__file__)}, DirectoryNotFoundError),
    ],
)
def test_a_program_that_is_missing_here_matters_only_where_workers_run_here(
    change: dict[str, Any], error: type[Exception], spec: JobSpec, context: LookupContext
) -> None:
    asked = with_fields(spec, **change)
    with pytest.raises(error, match=r"no-such-program|missing|is no folder"):
        prepare(asked, context, is_here)
    prepare(with_fields(asked, hosts=(Host("there", 4),)), context, is_here)


@pytest.mark.parametrize(
    ("timeline", "fault"),
    [
        ("bin", "Is a directory"),
        ("absent/t.json", "No such file or directory"),
        ("train.py/t.json", "Not a directory"),
        (os.devnull, "it is no regular file"),
    ],
)
def test_a_timeline_that_rank_0_cannot_write_here_is_refused(
    timeline: str, fault: str, spec: JobSpec, context: LookupContext
) -> None:
    with pytest.raises(LaunchError, match=f"of --timeline cannot be written: {fault}; name another file"):
        prepare(with_fields(spec, timeline=timeline), context, is_here)
    prepare(with_fields(spec, timeline=timeline), context, lambda host: host == "there")
    prepare(with_fields(spec, timeline="train.py"), context, is_here)
    prepare(with_fields(spec, timeline="dynamic"), context, is_here)


def test_a_timeline_on_a_read_only_disk_is_refused_with_the_systems_words(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, open_file = spec.workers.directory / "t.json", os.open

    def refuse(file: Any, *arguments: int) -> int:
        if file == path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(file, *arguments)

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(LaunchError, match="cannot be written: Read-only file system; name another file"):
        check_timeline(with_fields(spec, timeline="t.json").workers)


def test_another_user_on_this_machine_is_refused(spec: JobSpec, context: LookupContext) -> None:
    with pytest.raises(OtherUserError, match=r"no-such-user@here is this machine, .* leave no-such-user@ out"):
        prepare(with_fields(spec, users={"here": "no-such-user"}), context, is_here)
    prepare(with_fields(spec, users={"there": "no-such-user"}), context, is_here)


@pytest.mark.parametrize(
    ("size", "used"),
    [
        (1, (Host("a", 1),)),
        (2, (Host("a", 2),)),
        (3, (Host("a", 2), Host("b", 1))),
        (4, (Host("a", 2), Host("b", 1), Host("c", 1))),
    ],
)
def test_the_hosts_that_get_workers_are_the_first_ones_and_no_others_are_looked_up(
    size: int, used: tuple[Host, ...], spec: JobSpec, context: LookupContext
) -> None:
    small = with_fields(spec, size=size, hosts=(Host("a", 2), Host("b", 1), Host("c", 5)))
    look_up = Mock(return_value=True)
    prepared, _ = prepare(small, context, look_up)
    assert prepared.workers.hosts == used
    assert sorted(call.args[0] for call in look_up.call_args_list) == [host.name for host in used]
    elastic, _ = prepare(with_fields(small, elasticity=Elasticity(1)), context, look_up)
    assert elastic.workers.hosts == small.workers.hosts


def test_all_names_are_looked_up_together() -> None:
    hosts = [f"h{number}" for number in range(8)]
    together = threading.Barrier(len(hosts), timeout=30)

    def look_up(host: str) -> bool:
        together.wait()
        return host == "h3"

    assert find_remote(hosts, look_up) == frozenset(hosts) - {"h3"}


@pytest.fixture
def discovered(spec: JobSpec) -> JobSpec:
    """The same job, of which a script names the hosts."""
    return with_fields(spec, hosts=(), elasticity=Elasticity(1, script="./hosts"))


def test_a_job_of_unknown_hosts_is_ready_for_others(discovered: JobSpec, context: LookupContext, python: str) -> None:
    prepared, details = prepare(discovered, context, is_here)
    assert prepared.remote == Remote(frozenset(), (python, "train.py"), python)
    assert any("none so far" in detail for detail in details)


def test_hosts_that_a_script_names_are_taken_in_and_looked_up_once(discovered: JobSpec, context: LookupContext) -> None:
    asked: list[str] = []

    def look_up(host: str) -> bool:
        asked.append(host)
        return is_here(host)

    spec, _ = prepare(discovered, context, look_up)
    first = HostList((Host("there", 1), Host("here", 2)), {"there": "me"})
    spec = add_hosts(spec, first, context, look_up)
    assert (spec.workers.hosts, spec.remote.users) == (first.hosts, {"there": "me"})
    assert spec.remote.hosts == {"there"}
    spec = add_hosts(spec, HostList((Host("other", 1), Host("here", 1)), {}), context, look_up)
    spec = add_hosts(spec, first, context, look_up)
    assert sorted(asked) == ["here", "other", "there"]
    assert spec.remote.hosts == {"there", "other"}
    assert spec.remote.users == {"there": "me"}


def test_a_missing_program_is_reported_when_a_script_names_it(discovered: JobSpec, context: LookupContext) -> None:
    spec, _ = prepare(with_fields(discovered, command=("python", "gone.py")), context, is_here)
    spec = add_hosts(spec, HostList((Host("there", 1),), {}), context, is_here)
    with pytest.raises(ScriptNotFoundError):
        add_hosts(spec, HostList((Host("here", 1),), {}), context, is_here)
