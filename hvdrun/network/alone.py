"""Chooses the address of a host that is alone for now, and that others will have to reach later.

Nobody is there who could prove an address. The best guess is the one from which the host goes out itself: to the
launcher, or, where it is the launcher's own machine, to the world.
"""

import socket

from hvdrun.network.choice import Chosen
from hvdrun.network.errors import NoAllowedAddressError, describe
from hvdrun.network.findings import LAUNCHER, Findings
from hvdrun.network.restriction import Restriction
from rendezvous.core.model import LOOPBACK
from rendezvous.wire.orders import Listening

_FAR = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))  # addresses of nobody (RFC 5737, RFC 3849)
_DISCARD_PORT = 9


def choose_alone(findings: Findings, restriction: Restriction | None) -> Chosen:
    """Where the one host of these findings will be reached.

    Raises:
        NoAllowedAddressError: it has no address that may be used.
    """
    (host,) = findings.hosts
    entries = findings.addresses(host)
    allowed = [entry for entry in entries if restriction is None or restriction.allows(entry)]
    if not allowed and restriction is not None:
        raise NoAllowedAddressError({host: entries}, restriction)
    if not allowed:
        return Chosen(LOOPBACK, "", "it has no other address: no other host can join it")
    outward = _find_outward(findings, host)

    def rate(entry: Listening) -> tuple[int, bool, int]:
        wish = restriction.rank(entry) if restriction is not None else 0
        return wish, entry.endpoint.address not in outward, -entry.speed

    best = min(allowed, key=rate)
    return Chosen(best.endpoint.address, best.interface, f"{describe(best)}: it is alone, and others may come")


def find_own_outward() -> frozenset[str]:
    """The addresses from which this machine would go out into the world; nothing is sent."""
    found = set()
    for address, family in _FAR:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, _DISCARD_PORT))
            except OSError:  # there is no way out in this family
                continue
            found.add(str(probe.getsockname()[0]))
    return frozenset(found)


def _find_outward(findings: Findings, host: str) -> frozenset[str]:
    """The addresses from which it has reached the launcher; on the same machine each of them reaches itself."""
    sources = {proof.source for proof in findings.proofs.get(host, ()) if proof.host == LAUNCHER}
    own = {entry.endpoint.address for entry in findings.addresses(LAUNCHER)}
    return frozenset(sources - own) or find_own_outward()
