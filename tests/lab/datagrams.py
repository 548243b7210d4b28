"""Sends and prints datagrams, for tests that ask what gets through: run on hosts by its path.

datagrams.py listen PORT WORD: prints what arrives, a line each, until WORD has.
datagrams.py send ADDRESS PORT WORD
"""

import socket
import sys

LIMIT_SECONDS = 30.0


def listen(port: int, last: str) -> None:
    """Print what arrives on either family."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        receiver.bind(("::", port))
        receiver.settimeout(LIMIT_SECONDS)
        sys.stdout.write("listening\n")
        word = ""
        while word != last:
            sys.stdout.flush()
            word = receiver.recv(1000).decode()
            sys.stdout.write(f"{word}\n")


def send(address: str, port: int, word: str) -> None:
    """Send one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(word.encode(), (address, port))


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(int(sys.argv[2]), sys.argv[3])
    else:
        send(sys.argv[2], int(sys.argv[3]), sys.argv[4])
