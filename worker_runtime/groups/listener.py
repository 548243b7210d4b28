"""Makes gloo's listening sockets deaf once a group's pairs stand, so that no stranger can open a connection.

gloo ends the process when accepting fails, and offers no way to stop listening. A filter of packets on the socket drops
whatever comes from then on, in the kernel. It stays on the copies that forked children hold, which closing would not
reach; connections that exist have their own sockets and are not touched.
"""

import contextlib
import ctypes
import socket
import struct
from collections.abc import Mapping

from worker_runtime.groups.connections import duplicate, list_sockets

_SO_ATTACH_FILTER = 26  # Linux; the socket module does not name it
_DROP = struct.pack("@HBBI", 0x06, 0, 0, 0)  # classic BPF: return 0, which keeps no byte of a packet
_PROGRAM = "@HP"  # Linux's `struct sock_fprog`: how many instructions, and where they are


def find_listener(earlier: Mapping[str, int]) -> socket.socket | None:
    """A descriptor of our own for the TCP socket that listens since `earlier` was listed.

    None unless there is exactly one: another thread has opened one meanwhile, which must not be touched.
    """
    found: list[socket.socket] = []
    for name, number in list_sockets().items():
        if name not in earlier and (own := duplicate(name, number)) is not None:
            if own.type == socket.SOCK_STREAM and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(own)
            else:
                own.close()
    if len(found) == 1:
        return found[0]
    for each in found:
        each.close()
    return None


def silence(listener: socket.socket) -> None:
    """Have it answer no packet any more; without filters in the kernel it goes on listening."""
    code = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = struct.pack(_PROGRAM, 1, ctypes.addressof(code))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
