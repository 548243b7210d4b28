"""Lists of hosts and hostfiles: what is understood, and what is said of what is not."""

import os
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.errors import HostFileError, HostSyntaxError, UsageError
from hvdrun.spec.hosts import (
    MAX_HOSTFILE_BYTES,
    MAX_SLOTS_PER_HOST,
    HostList,
    discover_hosts,
    parse_discovered,
    parse_hostfile,
    parse_hosts,
    read_hostfile,
)
from rendezvous.core.model import Host


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("server1:4,server2:2", (Host("server1", 4), Host("server2", 2))),
        ("server1", (Host("server1", 1),)),
        ("server1:4, server2:4", (Host("server1", 4), Host("server2", 4))),
        ("10.0.0.1:2", (Host("10.0.0.1", 2),)),
        ("my-host_1.example.org:3", (Host("my-host_1.example.org", 3),)),
        ("a:2,b:1,a:3", (Host("a", 5), Host("b", 1))),
        ("a,a,a", (Host("a", 3),)),
        ("[2001:db8::1]:4", (Host("2001:db8::1", 4),)),
        ("[2001:db8::1]", (Host("2001:db8::1", 1),)),
        ("[2001:DB8:0::1]:1,[2001:db8::1]:2", (Host("2001:db8::1", 3),)),
        ("a:007", (Host("a", 7),)),
        (f"a:{MAX_SLOTS_PER_HOST}", (Host("a", MAX_SLOTS_PER_HOST),)),
    ],
)
def test_a_list_of_hosts_is_read_in_order_and_repeated_hosts_add_up(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == HostList(hosts, {})


@pytest.mark.parametrize(
    ("text", "hosts", "users"),
    [
        ("me@a:4", (Host("a", 4),), {"a": "me"}),
        ("me@a,b:2,j.r_doe-2@c", (Host("a", 1), Host("b", 2), Host("c", 1)), {"a": "me", "c": "j.r_doe-2"}),
        ("me@[2001:db8::1]:4", (Host("2001:db8::1", 4),), {"2001:db8::1": "me"}),
        ("me@a:1,a:2,me@a:3", (Host("a", 6),), {"a": "me"}),
    ],
)
def test_a_user_to_log_in_as_may_stand_before_a_host(text: str, hosts: tuple[Host, ...], users: dict[str, str]) -> None:
    assert parse_hosts(text) == HostList(hosts, users)
    assert parse_hostfile(text.replace(",", "\n"), "hosts") == HostList(hosts, users)


# What is said of a host, and of which ones.
MALFORMED = {
    "name:slots": ["", "a:", ":4", "a:2:3", "me@", "a b:4", "a;rm:4", "-oProxyCommand=x:1", "a\nb:2"],
    "not a number of slots": ["a:x", "a:2.5", "a:-1", "a:٣", "[::1]:"],
    "1 to 65536": ["a:0", "a:65537", f"a:{'9' * 6000}"],
    "[2001:db8::1]:4": ["2001:db8::1", "me@2001:db8::1"],
    "brackets": ["[2001:db8::1"],
    "IPv6": ["[server1]:4"],
    ":slots": ["[::1]4"],
    "me@server1:4": ["@server1:4"],
    "~/.ssh/config": ["-me@server1", "m e@server1", "$(id)@server1", "me@you@server1"],
}


@pytest.mark.parametrize(
    ("text", "piece", "hint"),
    [
        *((text, text, hint) for hint, texts in MALFORMED.items() for text in texts),
        ("a:2,", "", "single commas"),
        ("a:2,,b:1", "", "single commas"),
        ("b:1,::1", "::1", "[::1]:4"),
        ("me@a:1,b,you@a:1", "you@a:1", "as me and as you"),
    ],
)
def test_a_malformed_host_is_named_with_the_right_form(text: str, piece: str, hint: str) -> None:
    with pytest.raises(HostSyntaxError) as caught:
        parse_hosts(text)
    assert caught.value.piece == piece
    assert hint in str(caught.value)
    assert repr(piece) in str(caught.value)
    assert "\n" not in str(caught.value)


names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8)
host_lists = st.lists(st.tuples(names, st.integers(1, 99)), min_size=1, max_size=6)


@given(host_lists)
def test_no_slot_is_lost_and_no_host_comes_twice(pieces: list[tuple[str, int]]) -> None:
    hosts = parse_hosts(",".join(f"{name}:{slots}" for name, slots in pieces)).hosts
    assert sum(host.slots for host in hosts) == sum(slots for _, slots in pieces)
    assert [host.name for host in hosts] == list(dict.fromkeys(name for name, _ in pieces))


@given(st.text(), st.sampled_from([parse_hosts, partial(parse_discovered, slots_per_host=2)]))
def test_any_text_gives_hosts_or_one_sentence(text: str, parse: Callable[[str], HostList]) -> None:
    try:
        hosts = parse(text).hosts
    except HostSyntaxError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either outcome is right
    else:
        assert all(host.slots >= 1 for host in hosts)
        assert len({host.name for host in hosts}) == len(hosts)


def test_a_hostfile_may_have_comments_blank_lines_and_every_form() -> None:
    text = (
        "\ufeff# my machines\r\n\r\nserver1 slots=4 # the big one\r\n"
        "\tserver2:2\nserver3\n[2001:db8::1] slots = 2\nserver1:1"
    )
    hosts = (Host("server1", 5), Host("server2", 2), Host("server3", 1), Host("2001:db8::1", 2))
    assert parse_hostfile(text, "hosts").hosts == hosts


@pytest.mark.parametrize("key", ["max_slots", "max-slots"])
def test_the_oversubscription_bound_of_mpirun_has_no_effect(key: str) -> None:
    assert parse_hostfile(f"server1 slots=4 {key}=8\nserver2 {key}=8", "hosts").hosts == (
        Host("server1", 4),
        Host("server2", 1),
    )


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("a slots=2\n\nb slots=x\n", 3, "'x' is not a number"),
        ("a slots=0", 1, "1 to 65536"),
        ("# c\na slot=4", 2, "slots=n"),
        ("a 4", 1, "slots=n"),
        ("a slots=4 slots=4", 1, "once"),
        ("a:4 slots=4", 1, "twice"),
        ("a:1 slots=4", 1, "twice"),
        ("[::1]:4 slots=4", 1, "twice"),
        ("a slots=4 max_slots=many", 1, "not a number"),
        ("2001:db8::1 slots=4", 1, "brackets"),
        ("a,b", 1, "name:slots"),
        ("me@a slots=1\nme@b\nyou@a", 3, "as me and as you"),
        ("slots=4", 1, "name:slots"),
        ("= ", 1, "name:slots"),
    ],
)
def test_a_malformed_line_of_a_hostfile_is_named_by_its_number(text: str, line: int, hint: str) -> None:
    with pytest.raises(HostFileError, match=f"^line {line} of the hostfile 'my hosts'") as caught:
        parse_hostfile(text, "my hosts")
    assert caught.value.line == line
    assert hint in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n"])
def test_a_hostfile_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(HostFileError, match="names no host"):
        parse_hostfile(text, "hosts")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("\n# none today\n \n", ()),
        ("b\na:2\n", (Host("b", 3), Host("a", 2))),
        ("\ufeffa:1 # the first\r\nb:1\r\na\n", (Host("a", 3), Host("b", 1))),
        ("a:2\na:2\n", (Host("a", 2),)),
        ("a:4\nb\na:1\n", (Host("a", 1), Host("b", 3))),
        ("a:0\nb\nc:4\n[::1]:00\nc:0\n", (Host("b", 3),)),
        ("[::1]\n[2001:db8::1]:2", (Host("::1", 3), Host("2001:db8::1", 2))),
    ],
)
def test_a_script_s_lines_keep_their_order_and_the_last_of_a_host_counts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_discovered(text, 3).hosts == hosts


def test_a_script_may_name_users() -> None:
    assert parse_discovered("me@a\nb", 1).users == {"a": "me"}
    with pytest.raises(HostSyntaxError, match="twice"):
        parse_discovered("me@a\nyou@a", 1)


@pytest.mark.parametrize("line", ["a b", "a:", ":0", "-a", "a slots=2", "a,b", "404: Not Found", "a:1:2"])
def test_a_script_s_line_that_is_no_host_is_named(line: str) -> None:
    with pytest.raises(HostSyntaxError):
        parse_discovered(f"ok\n{line}\n", 1)


def test_hosts_come_from_the_list_or_the_hostfile_and_else_from_this_machine(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("zone", ["$(id)", "a;b", "a b", "`id`", "-x", "a/b"])
def test_a_zone_of_an_address_takes_no_characters_of_a_shell(zone: str) -> None:
    with pytest.raises(HostSyntaxError, match="brackets hold an IPv6 address"):
        parse_hosts(f"[fe80::1%{zone}]:2")
