"""`--network-interfaces`: which of the hosts' networks may be used."""

import ipaddress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from hvdrun.errors import BadValueError
from rendezvous.wire.orders import Listening

OPTION = "--network-interfaces"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The names of interfaces (`eth1`), patterns of them (`ib*`) and subnets (`10.0.0.0/8`) that may be used.

    pieces: the preferred one first.
    """

    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a list with commas.

        Raises:
            BadValueError: a piece is empty, or a subnet that cannot be.
        """
        pieces = tuple(piece.strip() for piece in text.split(","))
        if not all(map(_is_readable, pieces)):
            wanted = "names of interfaces, patterns of them or subnets, with commas between (eth0,ib*,10.0.0.0/8)"
            raise BadValueError(OPTION, wanted, text)
        return cls(pieces)

    def allows(self, listening: Listening) -> bool:
        """Whether this address may be used."""
        return self.rank(listening) < len(self.pieces)

    def rank(self, listening: Listening) -> int:
        """Which piece allows this address, counted from 0; the number of pieces when none does."""
        fitting = (place for place, piece in enumerate(self.pieces) if _fits(piece, listening))
        return next(fitting, len(self.pieces))

    def __str__(self) -> str:
        return f"{OPTION} {','.join(self.pieces)}"


def _is_readable(piece: str) -> bool:
    return bool(piece) and (_read_subnet(piece) is not None or ("/" not in piece and ":" not in piece))


def _fits(piece: str, listening: Listening) -> bool:
    subnet = _read_subnet(piece)
    if subnet is None:
        return fnmatchcase(listening.interface, piece)
    return ipaddress.ip_address(listening.endpoint.address) in subnet


def _read_subnet(piece: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The subnet that a piece names; a single address is one."""
    try:
        return ipaddress.ip_network(piece, strict=False)
    except ValueError:
        return None
