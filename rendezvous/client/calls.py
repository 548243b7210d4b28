"""What the calls of workers and agents have in common: how long they take, how a socket is named, what is final."""

import os
from pathlib import Path
from urllib.parse import quote

import grpc

from rendezvous.errors import CallRefusedError

CALL_SECONDS = 10.0  # one call's deadline
RETRY_SECONDS = 0.1  # between two tries
OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is not for us
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

# A path that is broken, or a peer that ends or is late. Whatever else a call ends with, it would end with again: the
# peer refuses it, does not know it, or cannot read it (INTERNAL), or it is too large (RESOURCE_EXHAUSTED).
_RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def name_socket(path: Path) -> str:
    """How gRPC names a Unix socket: in a URI, in which a path's odd characters are escaped."""
    return f"unix:{quote(os.fsencode(path))}"


def may_be_retried(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later."""
    return error.code() in _RETRIED


def raise_final(error: grpc.RpcError, where: str) -> None:
    """Raise what no further try can mend.

    Raises:
        CallRefusedError: that is what this error says.
    """
    if not may_be_retried(error):
        raise CallRefusedError(where, str(error.details())) from None
