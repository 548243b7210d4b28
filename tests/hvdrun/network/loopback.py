"""The addresses of this machine on which the network between hosts is tested without any."""

import socket


def has_ipv6() -> bool:
    """This machine has ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


ADDRESSES = ("127.0.0.1", "127.0.0.2", *(("::1",) if has_ipv6() else ()))
