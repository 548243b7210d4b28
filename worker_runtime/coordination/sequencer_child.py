"""The sequencer of another launcher's world: a child process of rank 0, since there is no agent.

It exits at the end of its standard input, and when its owner ends, even if another process holds the input open. One
process serves all generations of its owner, one after the other.
"""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from worker_runtime.rendezvous import SEQUENCER, Activation, Endpoint, SequencerStartError, describe_end, read_port
from worker_runtime.startup import parent_process

_CHUNK_BYTES = 4096
_END_SECONDS = 2.0  # for a process to exit that was killed, or has closed its output
_THREADS = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class _Child:
    """A process, and this side's ends of its standard input and output."""

    process: subprocess.Popen[bytes]
    orders: int
    output: int

    def close_pipes(self) -> None:
        """Close this side's ends."""
        os.close(self.orders)
        os.close(self.output)


class SequencerChild:
    """Owns at most one child, which exits after `close` or at the end of this process.

    Args:
        address: the address on which it listens.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._python = sys.executable or "python3"
        self._child: _Child | None = None
        self._port: int | None = None

    def activate(self, generation: int, size: int, key: bytes) -> None:
        """Make the sequencer serve a generation; start it if necessary. Does not wait.

        Raises:
            SequencerStartError: it could not be started, or has just exited.
        """
        child = self._child
        if child is None or child.process.poll() is not None:
            self.close()
            child = self._child = self._start()
        try:
            os.write(child.orders, Activation(generation, size, key).encode())
        except OSError as error:
            raise SequencerStartError(f"it does not read its input: {error.strerror}") from None

    def await_endpoint(self, limit: timedelta) -> Endpoint:
        """Wait until the sequencer listens, and return its address and port.

        Raises:
            SequencerStartError: it was never activated, has exited, or did not report its port within the limit.
        """
        if self._port is None:
            if self._child is None:
                raise SequencerStartError("it was never activated")
            self._port = self._read_port(self._child, limit)
        return Endpoint(self._address, self._port)

    def close(self) -> None:
        """Kill the child, if it runs. A later `activate` starts another one."""
        child, self._child, self._port = self._child, None, None
        if child is not None:
            child.process.kill()  # the members have left, or notice it by their connections
            with suppress(subprocess.TimeoutExpired):  # the kernel ends it later
                child.process.wait(_END_SECONDS)
            child.close_pipes()

    def abandon(self) -> None:
        """Forget the parent's child process in a forked child."""
        child, self._child, self._port = self._child, None, None
        if child is not None:
            child.close_pipes()
            child.process.returncode = 0  # not a child of this process: Popen must not wait for it or warn of it

    def _start(self) -> _Child:
        stdin, orders = os.pipe()
        output, stdout = os.pipe()

        try:
            process = subprocess.Popen(
                [self._python, "-P", "-c", *parent_process.make_arguments(SEQUENCER, self._address)],
                env={**os.environ, **_THREADS},
                stdin=stdin,
                stdout=stdout,
                start_new_session=True,  # a terminal's Ctrl-C must reach only the owner
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
        raise SequencerStartError(f"it did not report its port within {limit.total_seconds():g} s")


def _describe_end(process: subprocess.Popen[bytes]) -> str:
    """A description of the end of a process that has closed its output."""
    try:
        return describe_end(process.wait(_END_SECONDS))
    except subprocess.TimeoutExpired:
        return "has closed its standard output"
