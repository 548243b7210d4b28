"""The command lines of a job that waits for agents, of `hvdrun agent` and of `hvdrun token`."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.console import Console
from hvdrun.errors import UsageError
from hvdrun.joining import launcher
from hvdrun.joining.joining_agent import run_agent
from hvdrun.joining.launcher import choose_endpoint, choose_hosts, describe_agents, describe_joining, find_reachable
from hvdrun.joining.token import Token, create_token
from hvdrun.network.addresses import InterfaceAddress
from hvdrun.options.programs import AGENT, TOKEN, read_agent, read_token
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.mapping import MapBy
from hvdrun.spec.remote import Joining
from rendezvous.core.model import Endpoint, Host

PROGRAMS = ("agent", "token")
JOB = ("-np", "2", "--wait-for-agents")


def read(*words: str) -> JobSpec:
    """The job that a command line asks for."""
    found: list[JobSpec] = []

    def launch(spec: JobSpec, _console: Console) -> int:
        found.append(spec)
        return 0

    assert main([*words, "true"], launch) == 0
    return found[0]


def test_a_job_that_waits_has_no_hosts_and_its_agents_set_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = read(*JOB, "--bind", "[::1]:7", "--token-file", "t", "-map-by", "node")
    assert spec.remote.joining == Joining(Endpoint("::1", 7), tmp_path / "t", MapBy.NODE)
    assert spec.workers.hosts == ()
    assert spec.discovers
    assert spec.remote.leaves_paths
    assert spec.remote.is_inside  # --bind has a loopback address
    assert read("-np", "1").remote.joining is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("-np", "2", "--bind", "a:1"),
            "--bind is for a job that waits for its agents: give --wait-for-agents as well.",
        ),
        ((*JOB, "-H", "a:2"), "-H is for hosts that hvdrun goes to, and with --wait-for-agents they come"),
        ((*JOB, "--host-discovery-script", "x"), "--host-discovery-script is for hosts that hvdrun goes to"),
        ((*JOB, "--oversubscribe"), "with --wait-for-agents give the agents more --slots."),
        ((*JOB, "--bind", "a:b"), "--bind takes an address of this machine, with or without a port"),
        ((*JOB, "--bind", "29400"), "--bind takes an address of this machine, with or without a port, as in --bind 10"),
        (("token", "nowhere/x"), "No such file or directory; give `hvdrun token` or --token-file another file name."),
        (
            ("agent", "--join", "a:1", "--token-file", "x", "--name", ""),
            "a host cannot be called '': give another name",
        ),
    ],
)
def test_options_that_contradict_waiting_are_refused(
    words: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *(() if words[0] in PROGRAMS else ("true",))]) == 2
    assert sentence in capsys.readouterr().err


def test_a_dry_run_shows_what_agents_would_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--bind", "10.9.8.7", "--token-file", "/t o", "--dry-run", "true"]) == 0
    shown = capsys.readouterr().out
    assert "  listens    10.9.8.7, on a free port\n" in shown
    assert "  each host  hvdrun agent --join 10.9.8.7:PORT --token-file '/t o'\n" in shown
    spec = read(*JOB)
    assert spec.remote.joining is not None
    assert "agents with 2 slots" in describe_joining(spec, spec.remote.joining)


def test_the_default_address_is_that_of_the_default_route_and_no_wildcard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_own_outward", lambda: frozenset({"2001:db8::5", "10.0.0.5"}))
    assert choose_endpoint(Joining()) == Endpoint("10.0.0.5", 0)
    assert find_reachable("::") == "10.0.0.5"
    assert choose_endpoint(Joining(Endpoint("::", 7))) == Endpoint("::", 7)
    monkeypatch.setattr(launcher, "find_own_outward", frozenset)
    monkeypatch.setattr(launcher, "list_addresses", lambda: (InterfaceAddress("eth1", "10.7.7.7", 24, 0),))
    assert choose_endpoint(Joining()) == Endpoint("10.7.7.7", 0)
    monkeypatch.setattr(launcher, "list_addresses", tuple)
    assert choose_endpoint(Joining()) == Endpoint("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("name", "found", "place"),
    [
        ("node1", ["127.0.1.1"], "0.0.0.0"),  # noqa: S104 - Debian's /etc/hosts
        ("node1", ["::1", "127.0.1.1"], "0.0.0.0"),  # noqa: S104 - Debian's /etc/hosts
        ("node1", ["127.0.1.1", "10.0.0.5"], "node1"),
        ("node1", ["10.0.0.5"], "node1"),
        ("node1", [], "node1"),
        ("localhost", ["127.0.0.1"], "localhost"),
        ("127.0.1.1", ["127.0.1.1"], "127.0.1.1"),
    ],
)
def test_a_name_that_only_this_machine_can_reach_listens_at_every_address(
    monkeypatch: pytest.MonkeyPatch, name: str, found: list[str], place: str
) -> None:
    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        if not found:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert choose_endpoint(Joining(Endpoint(name, 7))) == Endpoint(place, 7)


def test_hosts_are_taken_as_they_come_and_ranked_by_name() -> None:
    came = (Host("n10", 2), Host("n2", 1), Host("n1", 4))
    assert choose_hosts(came, 8) is None
    assert choose_hosts(came, 3) == (Host("n2", 1), Host("n10", 2))
    assert choose_hosts(came, 4) == (Host("n1", 4), Host("n2", 1), Host("n10", 2))


def test_the_line_about_agents_shows_the_missing_slots() -> None:
    assert describe_agents((Host("a", 1), Host("b", 2)), 8) == "agents: a (1 slot), b (2 slots); 3 of 8 slots."
    assert describe_agents((), 1) == "agents: none; 0 of 1 slot."
    assert describe_agents((Host("a", 1),), 1) == "agents: a (1 slot); 1 slot."
    many = tuple(Host(f"n{number}", 4) for number in range(10))
    assert describe_agents(many, 8).endswith("n7 (4 slots), and 2 more; 40 slots.")


def test_an_agent_whose_token_file_has_no_token_ends(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    values = read_agent(AGENT.parse(["--join", "127.0.0.1:9", "--token-file", str(tmp_path / "t"), "--name", "a"]))
    with pytest.raises(UsageError, match="is not a token"):
        run_agent(values, lambda _: None)


def test_a_token_is_made_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "b.key for hvdrun alone; agents may join until" in create_token(read_token(TOKEN.parse(["b"])))
    assert main(["token", "--lifetime", "100h", "a"]) == 0
    assert (Token.read(tmp_path / "a").expires - Token.read(tmp_path / "b").expires).total_seconds() > 70 * 3600
    assert main(["token", "a"]) == 2
    for name in ("agent", "token"):
        assert main([name, "--help"]) == 0
    assert "Usage: hvdrun agent [OPTIONS]" in capsys.readouterr().out
