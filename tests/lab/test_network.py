"""Cut, slowed and closed networks of the lab are seen from its hosts as such, and mended ones as whole again."""

import json
import subprocess

import pytest

from tests.lab.fixtures import BuildLab
from tests.lab.host import Host
from tests.lab.login import LOGIN
from tests.lab.network import Direction
from tests.lab.plan import Family, HostPlan, SshdPlan

# Prints the datagrams that arrive on either family, a line each.
LISTEN = """
import socket, sys
receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiver.bind(("::", int(sys.argv[1])))
print("listening", flush=True)
while True:
    print(receiver.recv(1000).decode(), flush=True)
"""
PORT = 7000
SSH_PORT = 22
AMOUNT = 50_000
QUEUES = ("tc", "-s", "-j", "qdisc", "show", "dev")
IMPATIENT_SECONDS = 0.7  # where no answer is expected
TIMED_OUT = 124  # of `timeout`
CONNECT = "exec 3<>/dev/tcp/$0/$1 && head -n 1 <&3"


class Ear:
    """Hears the datagrams that arrive at a host."""

    def __init__(self, host: Host) -> None:
        process = host.start(["python", "-c", LISTEN, str(PORT)])
        assert process.stdout is not None
        self._lines = process.stdout
        assert self.hear() == "listening"

    def hear(self) -> str:
        """The next that arrives."""
        return self._lines.readline().decode().strip()


def send(sender: Host, receiver: Host, word: str, family: Family) -> None:
    """Send a datagram."""
    done = sender.run(["bash", "-c", f"printf %s {word} >/dev/udp/{receiver.network.address(family)}/{PORT}"])
    assert done.returncode == 0, done.stderr


def connects(here: Host, address: str) -> bool:
    """Whether the ssh server at an address greets."""
    return here.run(["bash", "-c", CONNECT, address, str(SSH_PORT)]).stdout.startswith("SSH-2.0")


def hears_nothing(here: Host, address: str) -> bool:
    """Whether nothing comes from an address within a moment, not even a refusal."""
    words = ["timeout", str(IMPATIENT_SECONDS), "bash", "-c", CONNECT, address, str(SSH_PORT)]
    return here.run(words).returncode == TIMED_OUT


@pytest.mark.parametrize("direction", Direction)
def test_a_one_way_cut_loses_one_way_only(lab: BuildLab, direction: Direction) -> None:
    hosts = lab(2)
    one, other = hosts
    ears = {host: Ear(host) for host in hosts}
    sender, receiver = (one, other) if direction is Direction.OUT else (other, one)
    for family in Family:
        for here, there in ((one, other), (other, one)):  # each knows the way then
            send(here, there, "first", family)
            assert ears[there].hear() == "first"
    one.network.cut(direction)
    for family in Family:
        send(sender, receiver, "lost", family)
        send(receiver, sender, "arrives", family)
        assert ears[sender].hear() == "arrives"
    one.network.mend()
    send(sender, receiver, "last", Family.IPV4)
    assert ears[receiver].hear() == "last"


def test_parted_hosts_lose_only_packets_to_each_other(lab: BuildLab) -> None:
    hosts = lab(3)
    hosts.part("host1", "host2")
    assert hears_nothing(hosts["host1"], "host2")
    assert hears_nothing(hosts["host2"], "host1")
    for name in ("host1", "host2"):
        assert connects(hosts["host3"], name)
        hosts[name].network.mend()
    assert connects(hosts["host1"], "host2")


def test_a_cut_is_silent_and_an_open_connection_outlives_it(lab: BuildLab) -> None:
    hosts = lab(1)
    echo = hosts.launcher.start([*LOGIN, "host1", "cat"], stdin=subprocess.PIPE)
    assert echo.stdin is not None
    assert echo.stdout is not None
    echo.stdin.write(b"early\n")
    echo.stdin.flush()
    assert echo.stdout.readline() == b"early\n"
    hosts["host1"].network.cut()
    echo.stdin.write(b"late\n")
    echo.stdin.flush()
    assert hears_nothing(hosts.launcher, "host1")
    assert "UP" in hosts["host1"].run(["ip", "-brief", "link", "show", "eth0"]).stdout
    assert echo.poll() is None
    hosts["host1"].network.mend()
    assert echo.stdout.readline() == b"late\n"


def test_an_unplugged_host_sees_that_its_cable_is_out(lab: BuildLab) -> None:
    hosts = lab(1)
    host = hosts["host1"]
    host.network.unplug()
    assert "NO-CARRIER" in host.run(["ip", "link", "show", "eth0"]).stdout
    assert hears_nothing(hosts.launcher, "host1")
    host.network.mend()
    assert connects(hosts.launcher, "host1")


def test_a_slow_network_holds_back_what_comes_in_and_what_goes_out(lab: BuildLab) -> None:
    hosts = lab(1)
    network = hosts["host1"].network
    (interface,) = network.interfaces
    ends = {"in": (network._on_switch, interface.port), "out": (network._on_host, interface.device)}
    echo = hosts.launcher.start([*LOGIN, "host1", "cat"], stdin=subprocess.PIPE)

    def transfer() -> None:
        assert echo.stdin is not None
        assert echo.stdout is not None
        echo.stdin.write(bytes(AMOUNT))
        echo.stdin.flush()
        assert len(echo.stdout.read(AMOUNT)) == AMOUNT

    def count_held_back() -> dict[str, int]:
        shown = {way: json.loads(run([*QUEUES, device], "")) for way, (run, device) in ends.items()}
        return {way: queue["overlimits"] for way, (queue, *_) in shown.items() if queue["kind"] == "tbf"}

    network.slow(1_000_000)
    transfer()
    assert set(count_held_back()) == {"in", "out"}
    assert all(count_held_back().values())
    network.mend()
    assert count_held_back() == {}
    transfer()


def test_a_second_network_works_when_the_first_is_cut(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", devices=("eth0", "ib0")), HostPlan("b", devices=("", "ens4")), HostPlan("c")])
    second = hosts["a"].network.address(Family.IPV4, 1)
    assert connects(hosts["c"], "a")
    hosts["a"].network.cut(device="eth0")
    assert hears_nothing(hosts["c"], "a")
    assert connects(hosts["b"], second)
    assert not connects(hosts["c"], second)
    with pytest.raises(LookupError, match="no interface ib1"):
        hosts["a"].network.cut(device="ib1")


def test_a_decoy_is_up_with_one_address_everywhere_and_leads_nowhere(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", decoys=("docker0",)), HostPlan("b", decoys=("docker0",))])
    trusting = [*LOGIN, "-o", "StrictHostKeyChecking=no"]
    for host in hosts:
        shown = host.run(["ip", "-brief", "-4", "address", "show", "docker0"]).stdout.split()
        assert shown[1:] == ["UP", "172.17.0.1/16"]
        assert host.run([*trusting, "172.17.0.1", "hostname"]).stdout == f"{host.name}\n"  # itself, never the other
        assert hears_nothing(host, "172.17.0.2")


def test_a_closed_host_opens_connections_and_accepts_no_connection(lab: BuildLab) -> None:
    hosts = lab(1, launcher=HostPlan("laptop", is_closed=True, sshd=SshdPlan()))
    laptop = hosts.launcher
    assert connects(laptop, "host1")
    for family in Family:
        assert hears_nothing(hosts["host1"], laptop.network.address(family))
    assert connects(laptop, "laptop")


def test_a_door_may_be_closed_to_one_host_alone(lab: BuildLab) -> None:
    hosts = lab(2)
    hosts["host1"].network.close_door(hosts["host2"].network)
    assert hears_nothing(hosts["host2"], "host1")
    assert connects(hosts.launcher, "host1")
    assert connects(hosts["host1"], "host2")
