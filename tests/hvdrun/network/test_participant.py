"""One machine's part in a survey."""

import asyncio
import os

from hvdrun.network.participant import Participant
from rendezvous.orders import Found, Probed, ProbeTarget
from tests.hvdrun.network.loopback import ADDRESSES


def list_targets(host: str, found: Found) -> list[ProbeTarget]:
    return [ProbeTarget(host, listening.endpoint) for listening in found.addresses]


async def meet() -> tuple[Found, Probed, Probed]:
    """What b has, what a proves of it, and what a proves when b has gone."""
    one, other = (Participant(b"token", host, loopback=True) for host in "ab")
    try:
        await one.look()
        found = await other.look()
        before = await one.probe(list_targets("b", found))
        other.close()
        return found, before, await one.probe(list_targets("b", found))
    finally:
        one.close()
        other.close()


def test_two_participants_meet_at_every_address_until_one_leaves() -> None:
    found, before, after = asyncio.run(meet())
    there = [listening.endpoint.address for listening in found.addresses]
    assert {"127.0.0.1", *ADDRESSES} - {"127.0.0.2"} <= {*there}
    assert [(proof.host, proof.address) for proof in before.proofs] == [("b", address) for address in there]
    assert after == Probed(())
    assert found.cores == len(os.sched_getaffinity(0))


def test_nobody_listens_on_loopback_in_earnest() -> None:
    async def look() -> Found:
        participant = Participant(b"token", "a")
        try:
            return await participant.look()
        finally:
            participant.close()

    found = asyncio.run(look())
    assert not {"127.0.0.1", "::1"} & {listening.endpoint.address for listening in found.addresses}
