"""What a survey has found: which addresses there are, who was asked to reach whom, and who did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rendezvous.wire.orders import Found, Listening, Proof

LAUNCHER = "(launcher)"  # hvdrun's own name in a survey: no host can be called so
ALL_PAIRS_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of one survey.

    found: what each participant has, LAUNCHER among them.
    pairs: (a, b): a was asked to reach b, at all addresses of b.
    proofs: what each participant has proven.
    """

    found: Mapping[str, Found]
    pairs: frozenset[tuple[str, str]]
    proofs: Mapping[str, Sequence[Proof]]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The participants but for the launcher."""
        return tuple(name for name in self.found if name != LAUNCHER)

    def addresses(self, host: str) -> tuple[Listening, ...]:
        """Those of one participant, in its own order; there are none for one that did not take part."""
        return self.found[host].addresses if host in self.found else ()

    def without(self, host: str) -> Self:
        """The findings as they would be if this host had taken no part."""
        return replace(
            self,
            found={name: entry for name, entry in self.found.items() if name != host},
            pairs=frozenset(pair for pair in self.pairs if host not in pair),
            proofs={name: proofs for name, proofs in self.proofs.items() if name != host},
        )

    def probers(self, host: str) -> frozenset[str]:
        """Who was asked to reach this one."""
        return frozenset(prober for prober, target in self.pairs if target == host)


def plan_pairs(hosts: Sequence[str], newcomers: frozenset[str] | None = None) -> frozenset[tuple[str, str]]:
    """Who is to reach whom: every host the launcher, and the hosts one another.

    newcomers: those of the hosts that are not in use yet, where only some are not: only pairs with one of them count.

    Beyond `ALL_PAIRS_LIMIT` hosts, where all pairs would be too many, each is to reach its neighbours in both
    directions at the distances 1, 2, 4, 8, ... in the given order, and the first host, where the workers' store will
    be. However the hosts may be cut into two parts that do not reach each other, some neighbours lie on both sides;
    and hosts that were listed together (a rack, a subnet) are tried against those far away in the list, too.
    """
    pairs = {(host, LAUNCHER) for host in hosts}
    for index, host in enumerate(hosts):
        others = hosts if len(hosts) <= ALL_PAIRS_LIMIT else (hosts[0], *_list_neighbours(hosts, index))
        pairs.update((host, other) for other in others if other != host)
    return frozenset(pair for pair in pairs if newcomers is None or not newcomers.isdisjoint(pair))


def _list_neighbours(hosts: Sequence[str], index: int) -> list[str]:
    distances = [1 << power for power in range(len(hosts).bit_length()) if 1 << power <= len(hosts) // 2]
    return [hosts[(index + sign * distance) % len(hosts)] for distance in distances for sign in (1, -1)]
