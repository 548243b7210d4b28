"""Where hosts come from."""

import os
from pathlib import Path

import pytest

from hvdrun.errors import HostFileError, UsageError
from hvdrun.spec.hosts import MAX_HOSTFILE_BYTES, HostList, discover_hosts, read_hostfile
from rendezvous.core.model import Host


def test_hosts_come_from_the_list_or_the_hostfile_and_else_it_is_this_machine(tmp_path: Path) -> None:
    assert discover_hosts(listed=None, hostfile=None, size=3) == HostList((Host("localhost", 3),), {})
    listed = discover_hosts(listed="me@a:2,b", hostfile=None, size=3)
    assert listed == HostList((Host("a", 2), Host("b", 1)), {"a": "me"})
    (tmp_path / "hosts").write_text("a slots=2\n")
    assert discover_hosts(listed=None, hostfile=tmp_path / "hosts", size=3).hosts == (Host("a", 2),)
    with pytest.raises(UsageError, match="only one"):
        discover_hosts(listed="a", hostfile=tmp_path, size=1)


def test_a_hostfile_may_be_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a slots=2\n")
    os.close(writing)
    try:
        assert read_hostfile(Path(f"/dev/fd/{reading}")).hosts == (Host("a", 2),)
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", r"nowhere.*No such file"),
        (".", "Is a directory"),
        ("a\0b", "null"),
        ("/dev/zero", str(MAX_HOSTFILE_BYTES)),
        ("latin", r"^line 3 .*0xff is not UTF-8"),
    ],
)
def test_a_hostfile_that_cannot_be_read_is_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a slots=2\n\nb\xff slots=1\n")
    with pytest.raises(HostFileError, match=said):
        read_hostfile(tmp_path / name)
