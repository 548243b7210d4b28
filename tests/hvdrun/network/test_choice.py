"""Which addresses are chosen: by tables for what people have, by laws for whatever else there is."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.network.addresses import Restriction
from hvdrun.network.choice import Choice, Chosen, check_machines, choose
from hvdrun.network.connectivity import LAUNCHER, Connectivity, plan_pairs
from hvdrun.network.errors import NoAllowedAddressError, NoCommonAddressError, SameMachineError
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Addresses, Listening, Proof


def read_listening(text: str) -> Listening:
    interface, subnet, *speed = text.split()
    address, _, prefix = subnet.partition("/")
    return Listening(interface, Endpoint(address, 4711), int(prefix), int(*speed))


def read_machines(text: str) -> dict[str, Addresses]:
    """The machines a, b and c; "interface address/prefix speed, another one | those of b"."""
    machines = [[entry for entry in machine.split(",") if entry.strip()] for machine in text.split("|")]
    return {host: Addresses(tuple(map(read_listening, listed))) for host, listed in zip("abc", machines, strict=False)}


def make_findings(machines: str | dict[str, Addresses], *unreached: str, slow: tuple[str, ...] = ()) -> Connectivity:
    """All hosts reach all addresses but for `address`, or `host>address`; slow ones take 9 ms."""
    found = read_machines(machines) if isinstance(machines, str) else machines
    pairs = plan_pairs([host for host in found if host != LAUNCHER])
    proofs = {
        prober: [
            Proof(host, address, "10.0.0.99", 9.0 if address in slow else 0.2)
            for host, entry in found.items()
            if (prober, host) in pairs
            for address in (listening.endpoint.address for listening in entry.addresses)
            if not {address, f"{prober}>{address}"} & {*unreached}
        ]
        for prober in found
        if prober != LAUNCHER
    }
    return Connectivity(found, pairs, proofs)


def list_addresses(choice: Choice) -> dict[str, str]:
    return {host: f"{chosen.interface} {chosen.address}" for host, chosen in choice.hosts.items()}


DOCKER = "docker0 172.17.0.1/16"
PLAIN = f"eth0 10.0.0.1/24, {DOCKER} | eth0 10.0.0.2/24, {DOCKER}"
FAST = (
    "eth0 10.0.0.1/24 1000, eth1 10.1.0.1/24 25000, ib0 10.2.0.1/24 | "
    "eth0 10.0.0.2/24 1000, eth1 10.1.0.2/24 25000, ib0 10.2.0.2/24"
)
DOCKERS = f"{DOCKER}, eth0 10.0.0.1/24 | eth0 172.17.0.2/16"
ROUTED = "eth0 10.0.1.1/24, wan 5.0.0.1/24 9000 | eth0 10.0.2.2/24, up 6.0.0.1/24 9000"
ROUTED_DUAL = "x 2001:db8::1/64, x 10.0.1.1/24 | y 10.0.2.2/24, y 2001:db8:1::1/64"
TWICE = "x 10.0.0.1/24, x 10.0.0.3/24 | x 10.0.0.4/24, x 10.0.0.2/24"
DUAL = "x 2001:db8::1/64, x 10.0.0.1/24 | x 2001:db8::2/64, x 10.0.0.2/24"
# Name: the machines, the addresses that are not reached, --network-interfaces, what is chosen on each.
CHOICES = {
    "docker0 leads nowhere": (PLAIN, "172.17.0.1", "", "eth0 10.0.0.1 | eth0 10.0.0.2"),
    "docker0 is what serves": (DOCKERS, "10.0.0.1", "", "docker0 172.17.0.1 | eth0 172.17.0.2"),
    "the fastest": (FAST, "", "", "eth1 10.1.0.1 | eth1 10.1.0.2"),
    "the fastest that works": (FAST, "10.1.0.2", "", "eth0 10.0.0.1 | eth0 10.0.0.2"),
    "the user's": (FAST, "", "ib*", "ib0 10.2.0.1 | ib0 10.2.0.2"),
    "the user's first": (FAST, "", "ib0,eth*", "ib0 10.2.0.1 | ib0 10.2.0.2"),
    "the user's second": (FAST, "10.2.0.1", "ib0,eth0,*", "eth0 10.0.0.1 | eth0 10.0.0.2"),
    "the user's subnet": (FAST, "", "10.0.0.0/16", "eth0 10.0.0.1 | eth0 10.0.0.2"),
    "names differ": ("enp1 10.0.0.1/24 | eth0 10.0.0.2/24", "", "", "enp1 10.0.0.1 | eth0 10.0.0.2"),
    "routed, on interfaces of one name": (ROUTED, "", "", "eth0 10.0.1.1 | eth0 10.0.2.2"),
    "routed, in one family": (ROUTED_DUAL, "", "", "x 10.0.1.1 | y 10.0.2.2"),
    "whatever is there": ("x 2001:db8::1/64 | y 10.0.2.2/24", "", "", "x 2001:db8::1 | y 10.0.2.2"),
    "IPv4 where both are equal": (DUAL, "", "", "x 10.0.0.1 | x 10.0.0.2"),
    "IPv6 where that works": (DUAL, "a>10.0.0.2", "", "x 2001:db8::1 | x 2001:db8::2"),
    "the one that the host names first": (TWICE, "", "", "x 10.0.0.1 | x 10.0.0.4"),
    "one host": ("eth0 10.0.0.1/24", "", "", " 127.0.0.1"),
    "one host, and the user's wish": ("eth0 10.0.0.1/24", "", "eth0", "eth0 10.0.0.1"),
    "one host without a network": ("", "", "", " 127.0.0.1"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_addresses_that_serve_best_are_chosen(name: str) -> None:
    machines, unreached, allowed, expected = CHOICES[name]
    choice = choose(make_findings(machines, unreached), Restriction(tuple(allowed.split(","))) if allowed else None)
    assert " | ".join(list_addresses(choice).values()) == expected


def test_a_network_with_short_round_trips_is_preferred_to_one_of_higher_speed() -> None:
    choice = choose(make_findings(FAST, slow=("10.1.0.1",)))
    assert list_addresses(choice) == {"a": "eth0 10.0.0.1", "b": "eth0 10.0.0.2"}


def test_the_choice_says_why() -> None:
    choice = choose(make_findings(PLAIN, "172.17.0.1"), Restriction(("eth*",)))
    assert choice.hosts["a"] == Chosen(
        "10.0.0.1",
        "eth0",
        "10.0.0.1 on eth0: all hosts reach each other in the subnet 10.0.0.0/24, as --network-interfaces eth* allows",
    )


def test_the_error_names_the_unreachable_pairs_the_tried_addresses_and_the_remedy() -> None:
    with pytest.raises(NoCommonAddressError) as caught:
        choose(make_findings(PLAIN, "172.17.0.1", "a>10.0.0.2"))
    assert caught.value.unreached == (("a", "b"),)
    assert str(caught.value) == (
        "the hosts cannot all reach each other: a does not reach b (tried 10.0.0.2 on eth0 and 172.17.0.1 on docker0). "
        "Let the firewalls between them pass TCP on all ports, or name a network that joins them all with "
        "--network-interfaces."
    )


def test_a_host_that_each_reaches_elsewhere_is_named_with_the_ways() -> None:
    machines = "eth0 10.0.0.1/24 | eth0 10.0.0.2/24, eth1 10.1.0.2/24 | eth0 10.0.0.3/24"
    with pytest.raises(NoCommonAddressError) as caught:
        choose(make_findings(machines, "a>10.1.0.2", "c>10.0.0.2"))
    assert caught.value.unreached == ()
    assert "no one address of b is reached by all the others (a reaches 10.0.0.2, c reaches 10.1.0.2)" in str(
        caught.value
    )


def test_a_restriction_that_leaves_a_host_nothing_says_what_the_host_has() -> None:
    with pytest.raises(NoAllowedAddressError) as caught:
        choose(make_findings("ib0 10.0.0.1/24 | eth0 10.0.0.2/24"), Restriction(("ib0",)))
    assert caught.value.hosts == ("b",)
    assert str(caught.value) == (
        "--network-interfaces ib0 leaves no address on b (it has 10.0.0.2 on eth0): name an interface or a subnet of "
        "each host, or leave the option out."
    )


def test_a_host_without_a_network_is_named() -> None:
    with pytest.raises(NoAllowedAddressError, match="no address but loopback and link-local ones on b: "):
        choose(make_findings("ib0 10.0.0.1/24 |"))


LAPTOP = read_machines(f"{PLAIN} | wlan0 192.168.0.7/24, tun0 10.0.0.9/24, {DOCKER}")
LAPTOP[LAUNCHER] = LAPTOP.pop("c")


@pytest.mark.parametrize(
    ("unreached", "restriction", "expected"),
    [
        (["172.17.0.1", "192.168.0.7"], None, ["10.0.0.9", "10.0.0.9"]),
        (["172.17.0.1", "a>192.168.0.7"], None, ["10.0.0.9", "10.0.0.9"]),
        (["172.17.0.1", "a>192.168.0.7", "b>10.0.0.9"], None, ["10.0.0.9", "192.168.0.7"]),
        (["172.17.0.1", "192.168.0.7", "b>10.0.0.9"], None, ["10.0.0.9", None]),
        (["172.17.0.1", "192.168.0.7", "10.0.0.9"], None, [None, None]),
        (["172.17.0.1"], "eth*,tun0", ["10.0.0.9", "10.0.0.9"]),
        (["172.17.0.1", "b>10.0.0.9"], "eth*,tun0", ["10.0.0.9", "192.168.0.7"]),
        (["172.17.0.1"], "eth*", ["192.168.0.7", "192.168.0.7"]),
    ],
)
def test_each_host_receives_an_address_of_the_launcher_that_it_reaches(
    unreached: list[str], restriction: str | None, expected: list[str | None]
) -> None:
    limits = None if restriction is None else Restriction(tuple(restriction.split(",")))
    choice = choose(make_findings(LAPTOP, *unreached), limits)
    assert list(choice.launcher.values()) == expected


interfaces = st.sampled_from(["eth0", "eth1", "ib0"])
addresses = st.builds("{} 10.{}.0.{}/{}".format, interfaces, st.integers(0, 2), st.integers(1, 250), st.just(16))
hosts = st.lists(addresses, min_size=1, max_size=4, unique_by=lambda text: text.split()[1])
networks = st.lists(hosts, min_size=2, max_size=5).map(
    lambda machines: {
        f"host{index}": Addresses(tuple(map(read_listening, listed))) for index, listed in enumerate(machines)
    }
)


@st.composite
def drawn_connectivity(draw: st.DrawFn) -> Connectivity:
    """Hosts with some addresses each, and who reached which."""
    connectivity = make_findings(draw(networks))
    proofs = {
        host: [proof for proof in listed if draw(st.integers(0, 5))]
        for host, listed in sorted(connectivity.proofs.items())
    }
    return Connectivity(connectivity.found, connectivity.pairs, proofs)


def find_complete(connectivity: Connectivity) -> dict[str, set[str]]:
    """The addresses of each host that all others have proven."""
    return {
        host: {
            entry.endpoint.address
            for entry in connectivity.addresses(host)
            if all(
                any(
                    (proof.host, proof.address) == (host, entry.endpoint.address)
                    for proof in connectivity.proofs[prober]
                )
                for prober in connectivity.hosts
                if prober != host
            )
        }
        for host in connectivity.hosts
    }


@given(drawn_connectivity())
def test_a_chosen_network_connects_all_hosts_and_is_found_wherever_one_does(
    connectivity: Connectivity,
) -> None:
    complete = find_complete(connectivity)
    try:
        choice = choose(connectivity)
    except NoCommonAddressError as error:
        assert {host for _, host in error.unreached} | error.divided.keys()  # noqa: PT017 - a connectivity check at random
        assert not all(complete.values())
    else:
        for host, chosen in choice.hosts.items():
            assert chosen.address in complete[host]
            assert (chosen.interface, chosen.address) in {
                (entry.interface, entry.endpoint.address) for entry in connectivity.addresses(host)
            }


@given(drawn_connectivity(), st.randoms())
def test_the_order_of_proofs_is_of_no_importance(connectivity: Connectivity, random: Random) -> None:
    shuffled = {host: random.sample(list(listed), len(listed)) for host, listed in connectivity.proofs.items()}
    other = Connectivity(connectivity.found, connectivity.pairs, dict(reversed(shuffled.items())))
    assert describe_choice(connectivity) == describe_choice(other)


@given(drawn_connectivity(), addresses)
def test_an_address_that_no_host_has_reached_changes_nothing(connectivity: Connectivity, decoy: str) -> None:
    entry = read_listening(decoy.replace("10.", "172.", 1))
    found = {host: Addresses((entry, *there.addresses)) for host, there in connectivity.found.items()}
    try:
        expected = choose(connectivity)
    except NoCommonAddressError:
        with pytest.raises(NoCommonAddressError):
            choose(Connectivity(found, connectivity.pairs, connectivity.proofs))
    else:
        assert choose(Connectivity(found, connectivity.pairs, connectivity.proofs)) == expected


def describe_choice(connectivity: Connectivity) -> Choice | str:
    try:
        return choose(connectivity)
    except NoCommonAddressError as error:
        return str(error)


def test_one_slow_answer_does_not_decide_the_family_of_an_interface() -> None:
    choice = choose(make_findings(DUAL, slow=("10.0.0.2",)))
    assert list_addresses(choice) == {"a": "x 10.0.0.1", "b": "x 10.0.0.2"}


def test_two_names_of_one_machine_are_refused() -> None:
    check_machines(choose(make_findings(PLAIN, "172.17.0.1")))
    machines = read_machines(PLAIN)
    one_machine = {"a": machines["a"], "alias": machines["a"], "b": machines["b"]}
    choice = choose(make_findings(one_machine, "172.17.0.1"))
    said = r"^a and alias are one machine, the one at 10\.0\.0\.1, .*: "
    with pytest.raises(SameMachineError, match=rf"{said}name it once, with all its slots, as in a:4\.$"):
        check_machines(choice)
    with pytest.raises(SameMachineError, match=rf"{said}start one agent there, with all its slots, as in --slots 4\.$"):
        check_machines(choice, have_joined=True)
