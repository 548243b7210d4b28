"""Chooses the address of each host at which the others reach it, from the proofs of a connectivity check.

The rules, in their order:
1. An address is used only if every host that was asked to reach it has reached it. So docker0 is never chosen, under
   any name.
2. The hosts use one subnet, or else interfaces of one name, or else addresses of one family (NCCL needs one), or else
   any addresses.
3. Among several such networks, the one that the user names first is best, then the nearest (by classes of latency,
   because one measurement is rough), then the fastest, then IPv4, then the one that the first host lists first.
"""

import ipaddress
import socket
import statistics
from bisect import bisect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from hvdrun.network.addresses import InterfaceAddress, Restriction, list_addresses
from hvdrun.network.connectivity import LAUNCHER, Connectivity
from hvdrun.network.errors import NoAllowedAddressError, NoCommonAddressError, SameMachineError, describe
from rendezvous.core.model import LOOPBACK, Endpoint
from rendezvous.wire.orders import Listening

_LATENCY_CLASSES = (5.0, 50.0)  # in milliseconds: one site, one region, the world


@dataclass(frozen=True, slots=True)
class Chosen:
    """The address at which a host is reached.

    interface: the name of the interface of that host with this address; empty for loopback.
    reason: one sentence, without a full stop.
    """

    address: str
    interface: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The address at which the other hosts reach each host, and at which each host reaches the launcher.

    launcher: the address for each host; None for a host that does not reach the launcher, and needs a tunnel.
    """

    hosts: Mapping[str, Chosen]
    launcher: Mapping[str, str | None]


def choose(connectivity: Connectivity, restriction: Restriction | None = None) -> Choice:
    """Choose for all hosts of a connectivity check.

    restriction: required for the hosts, and only preferred for the launcher, which may be another kind of machine.

    Raises:
        NoAllowedAddressError: a host has no address that may be used.
        NoCommonAddressError: some hosts cannot reach each other, or not at one address.
    """
    return Choice(_choose_hosts(connectivity, restriction), _choose_launcher(connectivity, restriction))


def check_machines(choice: Choice, *, have_joined: bool = False) -> None:
    """Refuse two names of one machine: each has answered, with its own proof, at the same address.

    have_joined: the agents have joined by themselves.

    Raises:
        SameMachineError: two names are one machine.
    """
    names: dict[str, list[str]] = {}
    for name, chosen in choice.hosts.items():
        names.setdefault(chosen.address, []).append(name)
    for address, alike in names.items():
        if len(alike) > 1:
            raise SameMachineError(alike, address, has_joined=have_joined)


def _choose_hosts(connectivity: Connectivity, restriction: Restriction | None) -> dict[str, Chosen]:
    hosts = connectivity.hosts
    if len(hosts) == 1 and restriction is None:
        return {hosts[0]: Chosen(LOOPBACK, "", "the only host: its workers meet on the loopback interface")}

    allowed = {
        host: [entry for entry in connectivity.addresses(host) if restriction is None or restriction.allows(entry)]
        for host in hosts
    }
    if lacking := {host: connectivity.addresses(host) for host in hosts if not allowed[host]}:
        raise NoAllowedAddressError(lacking, restriction)

    reach = _Reach(connectivity, restriction)
    proven = {host: [entry for entry in allowed[host] if reach.is_complete(host, entry)] for host in hosts}
    if not all(proven.values()):
        raise _explain(connectivity, reach, allowed, [host for host in hosts if not proven[host]])

    chosen, network = _find_network(reach, proven)
    limits = f", as {restriction} allows" if restriction is not None else ""
    return {
        host: Chosen(entry.endpoint.address, entry.interface, f"{describe(entry)}: {network}{limits}")
        for host, entry in chosen.items()
    }


class _Reach:
    """Which participant reaches which address, and how fast.

    Args:
        connectivity: the results of the probes.
        restriction: the networks that the user allows; None for all.
    """

    def __init__(self, connectivity: Connectivity, restriction: Restriction | None) -> None:
        self._restriction = restriction
        self._milliseconds: dict[tuple[str, str], dict[str, float]] = {}
        for prober, proofs in connectivity.proofs.items():
            for proof in proofs:
                self._milliseconds.setdefault((proof.host, proof.address), {})[prober] = proof.milliseconds

        self._probers = {host: connectivity.probers(host) for host in connectivity.found}
        self._positions = {
            (host, entry): position
            for host in connectivity.found
            for position, entry in enumerate(connectivity.addresses(host))
        }

        # The class of latency of an interface is that of its fastest address, so that one lost packet decides nothing.
        self._distances: dict[tuple[str, str], int] = {}
        for host, entry in self._positions:
            if times := self._milliseconds.get((host, entry.endpoint.address)):
                distance = bisect(_LATENCY_CLASSES, statistics.median(times.values()))
                place = host, entry.interface
                self._distances[place] = min(distance, self._distances.get(place, distance))

    def by(self, host: str, entry: Listening) -> frozenset[str]:
        """The participants that have reached this address of this host."""
        return self._probers[host] & self._milliseconds.get((host, entry.endpoint.address), {}).keys()

    def is_complete(self, host: str, entry: Listening) -> bool:
        """All participants that were asked to have reached this address."""
        return self.by(host, entry) == self._probers[host]

    def rate(self, host: str, entry: Listening) -> tuple[int, int, int, int, int]:
        """Rate an address, the least is the best: by preference, latency, speed, family, and the order of its host."""
        wish = 0
        if self._restriction is not None:
            wish = self._restriction.rank(entry)
        return (
            wish,
            self._distances.get((host, entry.interface), 0),
            -entry.speed,
            _find_family(entry),
            self._positions[host, entry],
        )

    def pick(self, host: str, entries: Sequence[Listening]) -> Listening:
        """The best of a host's addresses."""
        return min(entries, key=lambda entry: self.rate(host, entry))


def _find_network(reach: _Reach, proven: Mapping[str, Sequence[Listening]]) -> tuple[dict[str, Listening], str]:
    """One address for each host, and what the addresses have in common."""
    by_kind = ((_list_networks(kind, proven), describe_network) for kind, describe_network in _COMMON_NETWORKS)
    networks, describe_network = next(pair for pair in by_kind if pair[0])  # the last kind accepts any addresses
    picked = [{host: reach.pick(host, network[host]) for host in proven} for network in networks]
    best = min(picked, key=lambda network: _rate_network(reach, network))
    return best, describe_network(next(iter(best.values())))


def _list_networks(
    kind: Callable[[Listening], Hashable], proven: Mapping[str, Sequence[Listening]]
) -> list[dict[str, list[Listening]]]:
    """The addresses that share this property, if every host has one."""
    networks: dict[Hashable, dict[str, list[Listening]]] = {}
    for host, entries in proven.items():
        for entry in entries:
            networks.setdefault(kind(entry), {}).setdefault(host, []).append(entry)
    return [network for network in networks.values() if network.keys() == proven.keys()]


def _rate_network(reach: _Reach, network: Mapping[str, Listening]) -> tuple[int, ...]:
    """A network is rated like its worst host; the last criterion is the order of its first host."""
    rates = [reach.rate(host, entry) for host, entry in network.items()]
    *parts, _ = zip(*rates, strict=True)
    return (*map(max, parts), rates[0][-1])


def _find_subnet(entry: Listening) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((entry.endpoint.address, entry.prefix), strict=False)


def _find_family(entry: Listening) -> int:
    if ":" in entry.endpoint.address:
        return 6
    return 4


_COMMON_NETWORKS: tuple[tuple[Callable[[Listening], Hashable], Callable[[Listening], str]], ...] = (
    (_find_subnet, lambda entry: f"all hosts reach each other in the subnet {_find_subnet(entry)}"),
    (
        lambda entry: (entry.interface, _find_family(entry)),
        lambda entry: f"all hosts reach each other on {entry.interface}, in several subnets",
    ),
    (_find_family, lambda entry: f"the other hosts reach it, over IPv{_find_family(entry)}"),
    (lambda _: None, lambda _: "the other hosts reach it"),
)


def _explain(
    connectivity: Connectivity, reach: _Reach, allowed: Mapping[str, Sequence[Listening]], hosts: Sequence[str]
) -> NoCommonAddressError:
    """The error for hosts without an address that all reach: it names the participants that do not reach them."""
    unreached: list[tuple[str, str]] = []
    divided: dict[str, dict[str, list[str]]] = {}
    for host in hosts:
        reached: dict[str, list[str]] = {
            prober: [entry.endpoint.address for entry in allowed[host] if prober in reach.by(host, entry)]
            for prober in connectivity.found  # in their order
            if prober in connectivity.probers(host)
        }
        missing = [(prober, host) for prober, addresses in reached.items() if not addresses]
        unreached += missing
        if not missing:
            divided[host] = reached
    return NoCommonAddressError(unreached, divided, allowed)


def _choose_launcher(connectivity: Connectivity, restriction: Restriction | None) -> dict[str, str | None]:
    """For each host, the address of the launcher that it reaches, and that most other hosts reach too."""
    reach = _Reach(connectivity, restriction)

    def rate(entry: Listening) -> tuple[bool, int, tuple[int, ...]]:
        forbidden = restriction is not None and not restriction.allows(entry)
        return forbidden, -len(reach.by(LAUNCHER, entry)), reach.rate(LAUNCHER, entry)

    entries = sorted(connectivity.addresses(LAUNCHER), key=rate)
    return {
        host: next((entry.endpoint.address for entry in entries if host in reach.by(LAUNCHER, entry)), None)
        for host in connectivity.hosts
    }


def check_inside(hosts: Sequence[str], restriction: Restriction) -> None:
    """Refuse a restriction that fits no interface of this machine, which all hosts are; they need none but loopback.

    Raises:
        NoAllowedAddressError: it fits none.
    """
    listed = (InterfaceAddress("lo", LOOPBACK, 8, 0), *list_addresses())
    entries = [Listening(entry.interface, Endpoint(entry.address, 0), entry.prefix) for entry in listed]
    if not any(map(restriction.allows, entries)):
        raise NoAllowedAddressError(dict.fromkeys(hosts, entries), restriction)


_FAR = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))  # for documentation only (RFC 5737, RFC 3849)
_DISCARD_PORT = 9


def choose_alone(connectivity: Connectivity, restriction: Restriction | None) -> Chosen:
    """Choose for the only host of a connectivity check, which others may join.

    Raises:
        NoAllowedAddressError: the host has no address that may be used.
    """
    (host,) = connectivity.hosts
    entries = connectivity.addresses(host)
    allowed = [entry for entry in entries if restriction is None or restriction.allows(entry)]
    if not allowed and restriction is not None:
        raise NoAllowedAddressError({host: entries}, restriction)
    if not allowed:
        return Chosen(LOOPBACK, "", "it has no other address: no other host can join it")
    outward = _find_outward(connectivity, host)

    def rate(entry: Listening) -> tuple[int, bool, int]:
        wish = 0
        if restriction is not None:
            wish = restriction.rank(entry)
        return wish, entry.endpoint.address not in outward, -entry.speed

    best = min(allowed, key=rate)
    return Chosen(best.endpoint.address, best.interface, f"{describe(best)}: it is alone, and others may come")


def find_own_outward() -> frozenset[str]:
    """The source addresses of this machine towards the internet; nothing is sent."""
    found = set()
    for address, family in _FAR:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, _DISCARD_PORT))
            except OSError:  # there is no route in this family
                continue
            found.add(str(probe.getsockname()[0]))
    return frozenset(found)


def _find_outward(connectivity: Connectivity, host: str) -> frozenset[str]:
    """The source addresses from which a host has reached the launcher; on the launcher's machine, its own."""
    sources = {proof.source for proof in connectivity.proofs.get(host, ()) if proof.host == LAUNCHER}
    own = {entry.endpoint.address for entry in connectivity.addresses(LAUNCHER)}
    return frozenset(sources - own) or find_own_outward()
