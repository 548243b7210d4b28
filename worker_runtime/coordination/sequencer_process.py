"""The sequencer of a world that another launcher made: a child of rank 0, since there is no agent that could own it.

It ends at the end of its standard input, and with its owner, however that ends, even where another process holds the
input open. One process serves all generations of its owner, one after the other.
"""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from worker_runtime.rendezvous import SEQUENCER, Activation, Endpoint, SequencerStartError, read_port
from worker_runtime.startup import parent_process

_CHUNK_BYTES = 4096
_END_SECONDS = 2.0  # for a process that was killed, or has closed its output, to be gone
_THREADS = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class _Child:
    """A process, and our ends of its standard input and output."""

    process: subprocess.Popen[bytes]
    orders: int
    output: int

    def let_go(self) -> None:
        """Close our ends."""
        os.close(self.orders)
        os.close(self.output)


class SequencerProcess:
    """Owns at most one child; `close` or the end of this process ends it.

    Args:
        address: where it listens.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._python = sys.executable or "python3"
        self._child: _Child | None = None
        self._port: int | None = None

    def activate(self, generation: int, size: int, key: bytes) -> None:
        """Have it serve this generation from now on; it is started where none lives. Does not wait for it.

        Raises:
            SequencerStartError: it could not be started, or has just ended.
        """
        child = self._child
        if child is None or child.process.poll() is not None:
            self.close()
            child = self._child = self._start()
        try:
            os.write(child.orders, Activation(generation, size, key).encode())
        except OSError as error:
            raise SequencerStartError(f"it takes no orders: {error.strerror}") from None

    def await_endpoint(self, limit: timedelta) -> Endpoint:
        """Where it listens, once it does.

        Raises:
            SequencerStartError: it was never activated, ended instead, or did not report its port within the limit.
        """
        if self._port is None:
            if self._child is None:
                raise SequencerStartError("none was asked for")
            self._port = self._read_port(self._child, limit)
        return Endpoint(self._address, self._port)

    def close(self) -> None:
        """End it, if it lives. A later `activate` starts another one."""
        child, self._child, self._port = self._child, None, None
        if child is not None:
            child.process.kill()  # the members have said goodbye, or notice it by their connections
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(_END_SECONDS)
            child.let_go()

    def abandon(self) -> None:
        """After a fork, in the child: let go of the parent's process, which continues."""
        child, self._child, self._port = self._child, None, None
        if child is not None:
            child.let_go()
            child.process.returncode = 0  # it is no child of this one: Popen must neither wait for it nor miss it

    def _start(self) -> _Child:
        stdin, orders = os.pipe()
        output, stdout = os.pipe()
        try:
            process = subprocess.Popen(
                [self._python, "-P", "-c", *parent_process.make_arguments(SEQUENCER, self._address)],
                env={**os.environ, **_THREADS},
                stdin=stdin,
                stdout=stdout,
                start_new_session=True,  # a terminal's Ctrl-C is for the owner
            )
        except OSError as error:
            os.close(orders)
            os.close(output)
            raise SequencerStartError(f"{self._python} could not be started: {error.strerror}") from None
        finally:
            os.close(stdin)
            os.close(stdout)
        return _Child(process, orders, output)

    def _read_port(self, child: _Child, limit: timedelta) -> int:
        read = b""
        deadline = time.monotonic() + limit.total_seconds()
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([child.output], [], [], left)[0]:
                continue
            chunk = os.read(child.output, _CHUNK_BYTES)
            if not chunk:
                raise SequencerStartError(f"{self._python} -m {SEQUENCER} {_describe_end(child.process)}")
            *lines, read = (read + chunk).split(b"\n")
            for line in lines:
                if (port := read_port(line)) is not None:
                    return port
        raise SequencerStartError(f"it did not tell its port within {limit.total_seconds():g} s")


def _describe_end(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that has closed its output."""
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "has closed its standard output"
    return f"ended with exit code {code}" if code >= 0 else f"ended with signal {-code}"
