"""The sequencer's port under fire: strangers get nowhere, broken ranks end their generation alone, and it lives."""

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from tests.rendezvous.fire import Fire, burning, flip
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import (
    BARRIER,
    JOIN,
    KEY,
    LOOPBACK,
    PLAIN,
    Client,
    Process,
    exchange,
    gathering,
    serving,
    summing,
)
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Signature
from worker_runtime.coordination.wire import Frame

SEED = int(os.environ.get("HVDRUN_FUZZ_SEED", "1"))
IDLE = 1000
STRANGERS = 12
ROUNDS = 20
KINDS_OF_STRANGERS = 10  # of strangers
OF_EACH_KIND = 3
PATIENCE_SECONDS = 0.2
BROKEN_RANKS = 300


class Strangers(Fire):
    """Strangers at a sequencer's port; each answers its challenge in a way of its own."""

    def __init__(self, address: str, port: int, seed: int) -> None:
        super().__init__(address, port, seed)
        chance, self._address, self._port = self.chance, address, port
        self.kinds = {
            "noise": lambda _: chance.randbytes(chance.choice([1, 40, 76, 300, 70_000, 2_000_000])),
            "a part of a greeting": lambda challenge: greet(challenge)[: chance.randrange(1, 76)],
            "a wrong bit": lambda challenge: flip(greet(challenge), chance),
            "another rank": lambda challenge: greet(challenge, rank=chance.randrange(2, 2**32)),
            "a taken rank": greet,
            "another key": lambda challenge: greet(challenge, key=chance.randbytes(32)),
            "a later generation": lambda challenge: greet(challenge, chance.randrange(2, 2**64)) + bytes(99),
            "frames without proof": lambda _: wire.encode_frame(Frame.REQUESTS, chance.randbytes(1000)),
            "an endless frame without proof": lambda _: wire.HEADER.pack(2**32 - 1, Frame.REQUESTS) + bytes(200_000),
            "nothing": lambda _: b"",
        }

    async def visit(self, kind: str) -> None:
        """See `Fire.visit`."""
        reader, writer = await asyncio.open_connection(self._address, self._port)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                writer.write(self.kinds[kind](await reader.readexactly(wire.NONCE_BYTES)))
                await writer.drain()
                assert await reader.read(1) == b"", "a stranger was answered"
        finally:
            writer.transport.abort()


def greet(challenge: bytes, generation: int = 1, rank: int = 0, key: bytes = KEY) -> bytes:
    return wire.make_greeting(key, generation, rank, challenge, bytes(32))[0]


def test_the_ranks_continue_under_fire() -> None:
    async def story(process: Process, clients: list[Client]) -> None:
        port = process.port
        async with burning(LOOPBACK, port, seed=SEED, strangers=STRANGERS, idle=IDLE, kind=Strangers) as fire:
            rounds = 0
            while rounds < ROUNDS or len(fire.done) < KINDS_OF_STRANGERS or min(fire.done.values()) < OF_EACH_KIND:
                await asyncio.to_thread(sum_up, clients, rounds)
                rounds += 1

    with serving(2) as (process, clients):
        asyncio.run(story(process, clients))
        exchange(clients)
        assert process.read_memory_bytes() < 150_000_000
        assert process.end() == (0, "")


def sum_up(clients: list[Client], number: int) -> None:
    """A sum of both ranks' data, and that it is right."""
    for client in clients:
        client.ask(f"allreduce.{number % 7}", summing("int64", count=2), bytes([client.rank + 1]) + bytes(15))
    for client in clients:
        assert bytes(client.released().payload) == b"\3" + bytes(15)


def make_story(client: Client) -> Iterator[bytes]:
    """Frames as a rank sends them."""
    signatures = [summing(), summing("int8", count=3), PLAIN, BARRIER, JOIN, Signature(Kind.ADD_SET)]
    signatures += [
        Signature(Kind.ALLGATHER, payload_dtype="int32"),
        Signature(Kind.BROADCAST, root=0, payload_dtype="bool"),
    ]
    for number, signature in enumerate(signatures):
        yield wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(number, signature))
        client._signatures[signature] = number
    yield wire.encode_frame(
        Frame.REQUESTS,
        client.encode("a", summing(), bytes(64))
        + client.encode("b", summing("int8", count=3), b"abc")
        + client.encode("c", PLAIN)
        + client.encode("d", signatures[6], b"12345678", (2,))
        + client.encode("e", signatures[7], b"\1\0"),
    )
    yield wire.encode_frame(Frame.BLOCKED, wire.encode_blocked(2, is_blocked=True))
    yield wire.encode_frame(
        Frame.REQUESTS, client.encode("f", BARRIER) + client.encode("add", signatures[5], b"", (0, 1))
    )
    yield wire.encode_frame(Frame.BLOCKED, wire.encode_blocked(3, is_blocked=False))
    yield wire.encode_frame(Frame.REQUESTS, client.encode("join", JOIN))
    yield wire.encode_frame(Frame.LEAVE)


def mutate(frames: list[bytes], chance: random.Random) -> bytes:
    """The same frames, but for what a broken rank might do to them."""
    index = chance.randrange(len(frames))
    frame = frames[index]
    match chance.randrange(7):
        case 0:
            frames[index] = flip(frame, chance)
        case 1:  # the length is right, so what is wrong is inside
            frames[index] = wire.encode_frame(Frame(frame[4]), flip(frame[5:] or b"\0", chance))
        case 2:
            return b"".join(frames[:index]) + frame[: chance.randrange(len(frame))]
        case 3:
            frames[index] = wire.encode_frame(Frame(frame[4]), frame[5 : chance.randrange(5, len(frame) + 1)])
        case 4:
            frames.insert(index, wire.HEADER.pack(chance.choice([0, 9, 70_000]), chance.randrange(256)) + bytes(9))
        case 5:
            chance.shuffle(frames)
        case _:
            frames[index:index] = [frame] * chance.randrange(1, 4)
    return b"".join(frames)


def test_a_broken_rank_ends_its_generation_at_most() -> None:
    """Rank 1's frames are mutated in one way or another; rank 0's are right. The next generation is served as ever."""
    chance = random.Random(SEED)  # noqa: S311 - a story, not a secret
    reported: Counter[Frame] = Counter()
    with Process() as process:
        for _ in range(BROKEN_RANKS):
            with gathering(process, 2) as (first, second):
                first.socket.sendall(b"".join(list(make_story(first))[:-1]))
                first.count(8, set_size=2)
                with suppress(ConnectionError):
                    second.socket.sendall(mutate(list(make_story(second)), chance))
                    second.socket.shutdown(socket.SHUT_WR)
                reported.update(listen_to_the_end(first))
            assert process.popen.poll() is None
        with gathering(process, 2) as clients:
            sum_up(clients, 0)
        assert process.end() == (0, "")
    assert reported[Frame.FAILURE] > BROKEN_RANKS // 4, reported
    assert min(reported[Frame.RELEASES], reported[Frame.REFUSAL]) > 10, reported


def listen_to_the_end(client: Client) -> list[Frame]:
    """What a rank receives until the other one's loss, or until nothing of its own is pending any more."""
    reported: list[Frame] = []
    client.socket.settimeout(LIMIT_SECONDS)
    answered = 0
    while answered < 8:
        kind, _ = client.response()
        reported.append(kind)
        if kind is Frame.FAILURE:
            break
        answered += kind in (Frame.RELEASES, Frame.REFUSAL)
    return reported
