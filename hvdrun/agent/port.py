"""A port reserved for rank 0's torch store, without a race.

The agent binds the port and never listens. With SO_REUSEADDR on both sides a worker can bind it as well, and listen; a
process without SO_REUSEADDR gets "address in use".
"""

import socket


class ReservedPort:
    """One port of this machine, on all its addresses."""

    def __init__(self) -> None:
        self._socket = _bind()
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release it."""
        self._socket.close()


def _bind() -> socket.socket:
    """Bind as torch's store listens: on [::] where there is IPv6, which covers IPv4, else on 0.0.0.0."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
    except OSError:
        bound.close()
        raise
    return bound
