"""known_hosts files, in all the forms that ssh and its users write."""

import base64
import fcntl
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from hvdrun.transport.ssh import host_keys
from hvdrun.transport.ssh.host_keys import add_known, find_known, fingerprint, list_names
from hvdrun.transport.ssh.target import name_host
from tests.hvdrun.transport.ssh.servers import make_key, read_public

KEY = base64.b64encode(b"key").decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.mark.parametrize(
    ("names", "name", "is_known"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a,b", "b", True),
        ("A.Example", "a.example", True),
        ("*.example", "a.example", True),
        ("*.example,!b.example", "a.example", True),
        ("*.example,!b.example", "b.example", False),
        ("a?", "a1", True),
        ("[a]:2222", "[a]:2222", True),
        ("[a]:2222", "a", False),
        ("a", "[a]:2222", False),
        ("[10.0.0.*]:2222", "[10.0.0.7]:2222", True),
    ],
)
def test_a_line_is_for_the_hosts_that_its_patterns_name(file: Path, names: str, name: str, *, is_known: bool) -> None:
    file.write_text(f"{names} ssh-ed25519 {KEY} a comment\n", encoding="utf-8")
    assert [key.blob for key in find_known([file], name).keys] == ([b"key"] if is_known else [])


@pytest.mark.parametrize("name", ["server1", "[server1]:2222"])
def test_names_that_ssh_keygen_has_hashed_are_found(file: Path, name: str) -> None:
    file.write_text(f"{name} ssh-ed25519 {KEY}\nother ssh-ed25519 {KEY}\n", encoding="utf-8")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert name not in file.read_text(encoding="utf-8")
    (found,) = find_known([file], name).keys
    assert (found.file, found.line, found.kind) == (file, 1, "ssh-ed25519")


def test_lines_that_say_nothing_are_passed_over(file: Path) -> None:
    file.write_bytes(
        b"# a\n\n \nnonsense\na ssh-rsa\na ssh-rsa !!!\n@unheard a ssh-rsa a2V5\n|1|x|y ssh-rsa a2V5\n\xff\n"
    )
    assert find_known([file, file.with_name("none")], "a").keys == ()


def test_markers_set_a_line_apart(file: Path) -> None:
    file.write_text(f"@revoked * ssh-ed25519 {KEY}\n@cert-authority * ssh-rsa {KEY}\n", encoding="utf-8")
    known = find_known([file], "a")
    assert known.keys == ()
    assert [(key.line, key.kind) for key in known.revoked] == [(1, "ssh-ed25519")]


def test_keys_of_several_files_add_up(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file, kind in zip(files, ("ssh-ed25519", "ssh-rsa"), strict=True):
        file.write_text(f"a {kind} {KEY}\n", encoding="utf-8")
    assert [(key.file, key.kind) for key in find_known(files, "a").keys] == [
        (files[0], "ssh-ed25519"),
        (files[1], "ssh-rsa"),
    ]


def test_a_host_is_named_with_its_port_where_that_is_not_22() -> None:
    assert name_host("Server1", 22) == "server1"
    assert name_host("2001:db8::1", 2222) == "[2001:db8::1]:2222"


def test_a_fingerprint_is_written_as_ssh_writes_it(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    shown = subprocess.run(["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True).stdout
    assert fingerprint(base64.b64decode(read_public(key).split()[1])) == shown.split()[1]


def test_a_key_is_added_so_that_ssh_finds_it(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    kind, blob = read_public(make_key(tmp_path / "key")).split()
    add_known(file, "[a]:2222", kind, base64.b64decode(blob))
    add_known(file, "b", kind, base64.b64decode(blob), hashed=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for name in ("[a]:2222", "b"):
        subprocess.run(["ssh-keygen", "-F", name, "-f", str(file)], check=True, capture_output=True)
        assert len(find_known([file], name).keys) == 1
    assert "b" not in list_names([file])


def test_lines_of_the_file_stay(file: Path) -> None:
    file.write_text(f"a ssh-rsa {KEY}", encoding="utf-8")  # without an end of line
    file.chmod(0o644)
    add_known(file, "b", "ssh-rsa", b"key")
    add_known(file, "b", "ssh-rsa", b"key")
    assert file.read_text(encoding="utf-8") == f"a ssh-rsa {KEY}\nb ssh-rsa {KEY}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_process_that_adds_a_key_waits_for_another_that_does(file: Path) -> None:
    line = f"a ssh-rsa {KEY}\n"
    with ThreadPoolExecutor(2) as pool, file.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        adding = [pool.submit(add_known, file, "a", "ssh-rsa", b"key") for _ in range(2)]
        assert not wait(adding, timeout=0.1).done
        stream.write(line)
    assert [each.result() for each in adding] == [None, None]
    assert file.read_text(encoding="utf-8") == line


def test_dev_null_as_known_hosts_file_keeps_its_permissions() -> None:
    before = os.stat(os.devnull).st_mode  # noqa: PTH116 - os.devnull is a string
    add_known(Path(os.devnull), "a", "ssh-rsa", b"key")
    assert os.stat(os.devnull).st_mode == before  # noqa: PTH116 - os.devnull is a string


def test_only_names_in_plain_text_are_listed(file: Path) -> None:
    file.write_text(f"a,*.b,[c]:1 ssh-rsa {KEY}\n|1|x|y ssh-rsa {KEY}\n", encoding="utf-8")
    assert list_names([file]) == {"a"}


def test_a_lock_that_another_user_holds_on_the_empty_device_blocks_no_login() -> None:
    with Path(os.devnull).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        add_known(Path(os.devnull), "a", "ssh-rsa", b"key")


def test_a_lock_that_is_never_released_is_waited_for_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "_LOCK_SECONDS", 0.1)
    file = tmp_path / "known_hosts"
    file.touch()
    with file.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        add_known(file, "a", "ssh-rsa", b"key")
    assert list_names([file]) == {"a"}
