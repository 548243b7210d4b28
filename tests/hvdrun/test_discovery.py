"""Where hosts come from."""

import os
from pathlib import Path

import pytest

from hvdrun.discovery import MAX_HOSTFILE_BYTES, discover_hosts, read_hostfile
from hvdrun.errors import HostFileError, UsageError
from hvdrun.hosts import HostList
from rendezvous.core.model import Host


def test_without_a_choice_the_workers_run_here() -> None:
    assert discover_hosts(listed=None, hostfile=None, size=3) == HostList((Host("localhost", 3),), {})


def test_the_list_after_h_is_taken() -> None:
    found = discover_hosts(listed="me@a:2,b", hostfile=None, size=3)
    assert found == HostList((Host("a", 2), Host("b", 1)), {"a": "me"})


def test_a_hostfile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=2\n")
    assert discover_hosts(listed=None, hostfile=path, size=3).hosts == (Host("a", 2),)


def test_a_hostfile_may_be_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a slots=2\n")
    os.close(writing)
    try:
        assert read_hostfile(Path(f"/dev/fd/{reading}")).hosts == (Host("a", 2),)
    finally:
        os.close(reading)


def test_list_and_hostfile_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only one"):
        discover_hosts(listed="a", hostfile=tmp_path, size=1)


def test_a_missing_hostfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match=r"nowhere.*No such file"):
        read_hostfile(tmp_path / "nowhere")


def test_a_directory_is_no_hostfile(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match="Is a directory"):
        read_hostfile(tmp_path)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(HostFileError, match="null"):
        read_hostfile(Path("a\0b"))


def test_an_endless_hostfile_is_refused() -> None:
    with pytest.raises(HostFileError, match=str(MAX_HOSTFILE_BYTES)):
        read_hostfile(Path("/dev/zero"))


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"a slots=2\n\nb\xff slots=1\n")
    with pytest.raises(HostFileError, match=r"^line 3 .*0xff is not UTF-8"):
        read_hostfile(path)
