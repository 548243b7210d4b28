"""`python -m tests.system.attack COUNT [UID]`: strangers at the ports of a job, as another user where one is named.

It reads targets from standard input, one a line: `ADDRESS PORT`, or the path of a Unix socket. At each port there are
then, until the input ends:

- so many connections on which nothing is ever said;
- strangers that come again and again, each with something else; see `tests.rendezvous.fire`;
- some that close their half of the connection, or send a byte now and then.

It prints a line of JSON on what has happened at a target when all silent connections stand, and at the end. Each target
has a process of its own, so that its connections do not count against the files of the others.
"""

import asyncio
import encodings.idna  # noqa: F401 - for names of hosts in TLS; another user may not be able to read these files later
import errno
import json
import os
import select
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import cryptography.hazmat.backends.openssl  # noqa: F401 - for certificates; another user may not be able to read it later

from rendezvous.server.file_limit import raise_file_limit
from tests.rendezvous.fire import PREFACE, Fire, make_hello

SEED = int(os.environ.get("HVDRUN_FUZZ_SEED", "1"))
STRANGERS = 8
SLOW = 8
SILENT, LET_IN = "silent", "let in"
HALF_CLOSED, DRIPPING = "half closed", "dripping"  # a byte now and then
_AT_ONCE = 100  # idle connections that are begun before others have their turn
_PAUSE_SECONDS = 0.01
_DRIP_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0
_ANSWER_SECONDS = 10.0  # of a socket that serves this user
_NICE = 5


class Idle:
    """Connections that are made and left alone; whatever becomes of them."""

    def __init__(self, address: str, port: int, done: Counter[str], count: int, report: Callable[[], None]) -> None:
        self._count = count
        self._report = report
        self._place = address, port
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._done = done
        self._held: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    async def open(self) -> None:
        """Make so many, and count those that come to stand, until all do, or it is cancelled."""
        while self._done[SILENT] < self._count:
            for _ in range(min(_AT_ONCE, self._count - len(self._held))):
                each = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                self._held[each.fileno()] = each
                if each.connect_ex(self._place) in {0, errno.EINPROGRESS}:
                    self._poll.register(each, select.EPOLLOUT | select.EPOLLONESHOT)
            for number, _ in self._poll.poll(0):
                is_made = self._held[number].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                self._done[SILENT] += is_made
            await asyncio.sleep(_PAUSE_SECONDS)
        self._report()
        await asyncio.Event().wait()


async def besiege(address: str, port: int, count: int, end: asyncio.Event) -> None:
    """All of it, at one port, until the end."""
    fire = Fire(address, port, SEED)

    def report() -> None:
        _report(f"{address} {port}", fire.done)

    tasks = [asyncio.create_task(fire.burn()) for _ in range(STRANGERS)]
    tasks += [asyncio.create_task(_come_again(address, port, fire.done, kind, data)) for kind, data in _list_slow()]
    tasks.append(asyncio.create_task(Idle(address, port, fire.done, count, report).open()))
    await asyncio.wait({*tasks, asyncio.create_task(end.wait())}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()
    report()  # before the cancellation: the rest is no attack


def _list_slow() -> list[tuple[str, bytes]]:
    texts = [b"\0" * 200, PREFACE, make_hello(), b"\xff" * 200]
    return [(kind, texts[number % len(texts)]) for number in range(SLOW) for kind in (HALF_CLOSED, DRIPPING)]


async def _come_again(address: str, port: int, done: Counter[str], kind: str, data: bytes) -> None:
    """One stranger that takes its time, again and again."""
    while True:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(address, port)
            done[kind] += 1
            try:
                if kind == HALF_CLOSED:
                    writer.write(data[:7])
                    writer.write_eof()
                    while await reader.read(1024):
                        pass
                for byte in data if kind == DRIPPING else b"":
                    writer.write(bytes([byte]))
                    await writer.drain()  # raises when the other side has hung up
                    await asyncio.sleep(_DRIP_SECONDS)
            finally:
                writer.transport.abort()
        await asyncio.sleep(_PAUSE_SECONDS)


def knock(path: str) -> None:
    """See whether a Unix socket lets this user in; one without a file, to which all can connect, if it answers."""
    done = Counter({LET_IN: 0})
    with socket.socket(socket.AF_UNIX) as visitor, suppress(OSError):
        if path.startswith("@"):
            visitor.settimeout(_ANSWER_SECONDS)
            visitor.connect(path.replace("@", "\0", 1))
            done[LET_IN] += bool(visitor.recv(1))
        else:
            visitor.connect(path)
            done[LET_IN] += 1
    _report(path, done)


async def _attack(target: str, count: int, alive: int) -> None:
    """Until no process holds the other end of `alive` any more."""
    address, _, port = target.rpartition(" ")
    if not address:
        knock(target)
        return
    end = asyncio.Event()
    asyncio.get_running_loop().add_reader(alive, end.set)
    await besiege(address, int(port), count, end)


def _report(target: str, done: Counter[str]) -> None:
    os.write(1, json.dumps([target, done]).encode() + b"\n")


def main() -> None:
    """Attack what is named, until the input ends."""
    count = int(sys.argv[1])
    raise_file_limit()
    os.nice(_NICE)
    os.closerange(3, 100)
    if len(sys.argv) > 2:
        uid = int(sys.argv[2])
        os.chdir("/")
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    reading, alive = os.pipe()
    children = []
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.close(alive)
            try:
                asyncio.run(_attack(line.rstrip("\n"), count, reading))
            except BaseException:  # noqa: BLE001 - what a child must never do is to continue as its parent
                traceback.print_exc()
            os._exit(0)
        children.append(child)
    os.close(alive)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
