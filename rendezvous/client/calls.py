"""What the calls of workers and agents share: time limits, the connection to an agent, which errors are final."""

import os
from pathlib import Path
from urllib.parse import quote

import grpc

from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.errors import CallRefusedError

CALL_SECONDS = 10.0  # one call's deadline
RETRY_SECONDS = 0.1  # between two tries
LONGEST_RETRY_SECONDS = 1.0  # where the peer may be away for an hour
OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment does not lead to the launcher
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

# The network is broken, or the peer stops or is late. Any other error would be the same at the next try: the peer
# refuses the call, does not know it, or cannot read it (INTERNAL), or it is too large (RESOURCE_EXHAUSTED).
_RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


class Pauses:
    """The pauses between tries, which grow until one succeeds.

    Args:
        is_patient: the peer may be away for long; else all are equal.
    """

    def __init__(self, *, is_patient: bool = False) -> None:
        self._longest_seconds = LONGEST_RETRY_SECONDS if is_patient else RETRY_SECONDS
        self._seconds = RETRY_SECONDS

    def next(self) -> float:
        """The next one, in seconds."""
        seconds = self._seconds
        self._seconds = min(self._longest_seconds, 1.5 * seconds)
        return seconds

    def reset(self) -> None:
        """A try has succeeded."""
        self._seconds = RETRY_SECONDS


def name_socket(path: Path) -> str:
    """GRPC's name of a Unix socket: a URI, in which special characters of the path are escaped."""
    return f"unix:{quote(os.fsencode(path))}"


def connect_to_agent(socket: Path) -> tuple[grpc.Channel, pb_grpc.RendezvousStub]:
    """A worker's channel to its agent, and the service on it; blocking."""
    channel = grpc.insecure_channel(name_socket(socket), options=(*OPTIONS, ("grpc.min_reconnect_backoff_ms", 50)))
    return channel, pb_grpc.RendezvousStub(channel)


def may_be_retried(error: grpc.RpcError) -> bool:
    """The same call may succeed later."""
    return error.code() in _RETRIED


def raise_final(error: grpc.RpcError, where: str) -> None:
    """Raise an error that another try would not change.

    Raises:
        CallRefusedError: the error is final.
    """
    if not may_be_retried(error):
        raise CallRefusedError(where, str(error.details())) from None
