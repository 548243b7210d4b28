"""Errors of the network between the hosts; each builds its sentence."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from hvdrun.errors import LaunchError
from hvdrun.network.addresses import OPTION, Restriction
from rendezvous.wire.orders import Listening

_NAMED = 8  # more in one sentence would not be read


class NoCommonAddressError(LaunchError):
    """Not all hosts can reach each other, or not at one address.

    Cause: A firewall stands between some hosts, or they have no network in common.
    Remedy: Let the firewalls pass TCP between the hosts, or name a common network with `--network-interfaces`.

    Args:
        unreached: (a, b): a reaches no address of b that may be used.
        divided: by host that the others reach at different addresses: which of them reaches which.
        tried: the addresses of the hosts that are not reached.
    """

    def __init__(
        self,
        unreached: Sequence[tuple[str, str]],
        divided: Mapping[str, Mapping[str, Sequence[str]]],
        tried: Mapping[str, Sequence[Listening]],
    ) -> None:
        places = {host: " and ".join(map(describe, listed)) for host, listed in tried.items()}
        facts = [f"{one} does not reach {other} (tried {places[other]})" for one, other in unreached]
        for host, reached in divided.items():
            ways = ", ".join(f"{one} reaches {' and '.join(addresses)}" for one, addresses in reached.items())
            facts.append(f"no one address of {host} is reached by all the others ({ways})")
        super().__init__(
            f"the hosts cannot all reach each other: {_list_some(facts, '; ')}. Let the firewalls between them pass "
            f"TCP on all ports, or name a network that joins them all with {OPTION}."
        )
        self.unreached = tuple(unreached)
        self.divided = divided


class NoAllowedAddressError(LaunchError):
    """Some hosts have no address that may be used.

    Message: --network-interfaces NAMES leaves no address on HOST (it has ADDRESSES): name an interface or a subnet of
        each host, or leave the option out.
    Cause: `--network-interfaces` names no network of that host.
    Remedy: Name an interface or a subnet of each host.

    Message: no address but loopback and link-local ones on HOST: bring up a network interface that the other hosts can
        reach.
    Cause: The host has no network but loopback.
    Remedy: Bring up an interface that the other hosts reach.
    """

    def __init__(self, hosts: Mapping[str, Sequence[Listening]], restriction: Restriction | None) -> None:
        if restriction is None:
            sentence = (
                f"no address but loopback and link-local ones on {_list_some(list(hosts))}: bring up a network "
                "interface that the other hosts can reach."
            )
        else:
            facts = [f"{host} (it has {_list_some(list(map(describe, listed)))})" for host, listed in hosts.items()]
            sentence = (
                f"{restriction} leaves no address on {_list_some(facts)}: name an interface or a subnet of each host, "
                "or leave the option out."
            )
        super().__init__(sentence)
        self.hosts = tuple(hosts)


class SameMachineError(LaunchError):
    """Two hosts of a job are one machine.

    Cause: Two names in the list of hosts lead to one machine, or two agents run on it.
    Remedy: Name the machine once, or start one agent there, with all its slots. For a trial on one
        machine, `hvdrun --bind 127.0.0.1` accepts several agents.

    Args:
        names: the names of the machine.
        address: that all of them have.
        has_joined: its agents have joined by themselves.
    """

    is_refusal: ClassVar[bool] = True

    def __init__(self, names: Sequence[str], address: str, *, has_joined: bool = False) -> None:
        remedy = (
            "start one agent there, with all its slots, as in --slots 4"
            if has_joined
            else f"name it once, with all its slots, as in {names[0]}:4"
        )
        super().__init__(
            f"{' and '.join(names)} are one machine, the one at {address}, and the workers of each would count its "
            f"devices from 0: {remedy}."
        )
        self.names = tuple(names)


class ConnectivityTimeoutError(LaunchError):
    """Some hosts did not answer in time.

    Cause: The host is overloaded, or its connection stalls.
    Remedy: Check the load of the host, and start again.
    """

    def __init__(self, hosts: Sequence[str], task: str, limit_seconds: float) -> None:
        super().__init__(
            f"{_list_some(hosts)} did not {task} within {limit_seconds:.0f} s: look whether the machine is overloaded "
            "or its connection stalls, and start again."
        )
        self.hosts = tuple(hosts)


def describe(listening: Listening) -> str:
    """An address, and the interface that has it."""
    return f"{listening.endpoint.address} on {listening.interface}"


def _list_some(facts: Sequence[str], separator: str = ", ") -> str:
    """The first facts, and how many more there are."""
    if not facts:
        return "none"
    more = []
    if len(facts) > _NAMED:
        more = [f"and {len(facts) - _NAMED} more"]
    return separator.join([*facts[:_NAMED], *more])
