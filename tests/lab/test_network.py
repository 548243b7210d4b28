"""Cut, slowed and closed networks of the lab are seen from its hosts as such, and mended ones as whole again."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.fixtures import BuildLab
from tests.lab.host import Host
from tests.lab.login import LOGIN
from tests.lab.network import Direction
from tests.lab.plan import Family, HostPlan, SshdPlan

DATAGRAMS = Path(__file__).with_name("datagrams.py")
PORT = 7000
SSH_PORT = 22
AMOUNT = 100_000
IMPATIENT_SECONDS = 0.7  # where no answer is expected
TIMED_OUT = 124  # of `timeout`
CONNECT = "exec 3<>/dev/tcp/$0/$1 && head -n 1 <&3"


class Ear:
    """Hears the datagrams that arrive at a host, up to the word "last"."""

    def __init__(self, host: Host) -> None:
        self._process = host.start(["python", DATAGRAMS, "listen", str(PORT), "last"])
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        assert self.hear() == "listening"

    def hear(self) -> str:
        """The next that arrives."""
        return self._lines.readline().decode().strip()


def tell(sender: Host, receiver: Host, word: str, family: Family = Family.IPV4, network: int = 0) -> None:
    address = receiver.network.address(family, network)
    done = sender.run(["python", DATAGRAMS, "send", address, str(PORT), word])
    assert done.returncode == 0, done.stderr


def connects(here: Host, address: str) -> bool:
    """Whether the ssh server at an address greets."""
    return here.run(["bash", "-c", CONNECT, address, str(SSH_PORT)]).stdout.startswith("SSH-2.0")


def hears_nothing(here: Host, address: str) -> bool:
    """Whether nothing comes from an address within a moment, not even a refusal."""
    words = ["timeout", str(IMPATIENT_SECONDS), "bash", "-c", CONNECT, address, str(SSH_PORT)]
    return here.run(words).returncode == TIMED_OUT


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("direction", Direction)
def test_a_one_way_cut_loses_one_way_only(lab: BuildLab, direction: Direction, family: Family) -> None:
    hosts = lab(2)
    one, other = hosts
    ears = {host: Ear(host) for host in hosts}
    for sender, receiver in ((one, other), (other, one)):
        tell(sender, receiver, "first", family)
        assert ears[receiver].hear() == "first"
    sender, receiver = (one, other) if direction is Direction.OUT else (other, one)
    one.network.cut(direction)
    tell(sender, receiver, "lost", family)
    tell(receiver, sender, "arrives", family)
    assert ears[sender].hear() == "arrives"
    one.network.mend()
    tell(sender, receiver, "last", family)
    assert ears[receiver].hear() == "last"


def test_parted_hosts_lose_what_they_send_each_other_alone(lab: BuildLab) -> None:
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


@pytest.mark.parametrize(
    ("command", "sent", "answer"),
    [
        (f"while head -c {AMOUNT} >/dev/null; do echo; done", AMOUNT, 1),
        (f"while read; do head -c {AMOUNT} /dev/zero; done", 1, AMOUNT),
    ],
    ids=["in", "out"],
)
def test_a_slow_network_takes_its_time(lab: BuildLab, command: str, sent: int, answer: int) -> None:
    hosts = lab(1)
    host = hosts["host1"]
    session = hosts.launcher.start([*LOGIN, "host1", command], stdin=subprocess.PIPE)

    def transfer() -> float:
        assert session.stdin is not None
        assert session.stdout is not None
        began = time.monotonic()
        session.stdin.write(b"\n" * sent)
        session.stdin.flush()
        assert len(session.stdout.read(answer)) == answer
        return time.monotonic() - began

    transfer()
    host.network.slow(1_000_000)
    slow_seconds = transfer()
    host.network.mend()
    assert slow_seconds > 0.8 * AMOUNT * 8 / 1_000_000
    assert transfer() < 0.8 * AMOUNT * 8 / 1_000_000


def test_a_second_network_goes_on_when_the_first_is_cut(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", devices=("eth0", "ib0")), HostPlan("b", devices=("ens3", "ens4")), HostPlan("c")])
    assert connects(hosts["c"], "a")
    hosts["a"].network.cut(device="eth0")
    assert hears_nothing(hosts["b"], "a")
    second = hosts["a"].network.address(Family.IPV4, 1)
    assert connects(hosts["b"], second)
    assert not connects(hosts["c"], second)


def test_a_host_may_be_on_the_second_network_alone(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", devices=("", "eth0")), HostPlan("b", devices=("eth0", "eth1")), HostPlan("c")])
    assert connects(hosts["b"], "a")
    assert not connects(hosts["c"], "a")


def test_a_decoy_is_up_with_one_address_everywhere_and_leads_nowhere(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", decoys=("docker0",)), HostPlan("b", decoys=("docker0",))])
    trusting = [*LOGIN, "-o", "StrictHostKeyChecking=no"]
    for host in hosts:
        shown = host.run(["ip", "-brief", "-4", "address", "show", "docker0"]).stdout.split()
        assert shown[1:] == ["UP", "172.17.0.1/16"]
        assert host.run([*trusting, "172.17.0.1", "hostname"]).stdout == f"{host.name}\n"  # itself, never the other
        assert hears_nothing(host, "172.17.0.2")


def test_a_closed_host_opens_connections_and_accepts_none(lab: BuildLab) -> None:
    hosts = lab(1, launcher=HostPlan("laptop", is_closed=True, sshd=SshdPlan()))
    laptop = hosts.launcher
    assert connects(laptop, "host1")
    for family in Family:
        assert hears_nothing(hosts["host1"], laptop.network.address(family))
    assert connects(laptop, "laptop")
    laptop.network.open_door()
    assert connects(hosts["host1"], "laptop")


def test_a_cut_of_an_interface_that_is_not_there_is_refused(lab: BuildLab) -> None:
    with pytest.raises(LookupError, match="no interface ib0"):
        lab(1)["host1"].network.cut(device="ib0")
