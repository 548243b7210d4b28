"""A port that a test names before a server listens there, or where none ever does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserve_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections until a server listens there.

    The kernel gives it to no other process meanwhile. A server that names it, and sets SO_REUSEADDR, can listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
