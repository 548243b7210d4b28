"""The processes that play ranks: each runs the functions that a test sends, each in an initialised world."""

import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import socket
import sys
import traceback
import warnings
from array import array
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import torch
import torch._dynamo  # which the first optimizer imports

from rendezvous.bootstrap import BACKEND, Bootstrap
from rendezvous.core.model import Assignment, Endpoint, Membership, Slot, Worker
from tests.worker_runtime.rank_template import MOST_BYTES, OUTPUTS
from worker_runtime.coordination.sequencer_child import SequencerChild
from worker_runtime.coordination.wire import KEY_BYTES
from worker_runtime.membership.runtime import RUNTIME

LIMIT_SECONDS = 60.0
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG; the parent is the thread that starts this process
_MOST_DESCRIPTORS = 64  # of a rank: pipes to all others
KEY = bytes(range(KEY_BYTES))
SEQUENCER = SequencerChild("127.0.0.1")  # of rank 0, for all its worlds


class PipeExchange:
    """A rendezvous for ranks whose numbers are known: the ranks send each other lines through pipes.

    writable: rank 0's pipes to the other ranks, or another rank's pipe to rank 0.
    """

    def __init__(self, rank: int, size: int, readable: int, writable: tuple[int, ...]) -> None:
        self._assignment = Assignment(rank, size, rank, size, 0, 1)
        self._readable = readable
        self._writable = writable

    def join(self, after: int) -> Membership:
        """A new generation each time. Rank 0 waits until the other ranks have left the former one."""
        generation = after + 1
        if self._assignment.rank:
            os.write(self._writable[0], f"{generation}\n".encode())
        else:
            for _ in range(1, self._assignment.size):
                assert int(self._read_line()) == generation
        return Membership(generation, self._assignment, KEY)

    def await_sequencer(self, generation: int) -> Endpoint:
        """Rank 0 has one of its own, and writes to every other rank."""
        if self._assignment.rank == 0:
            SEQUENCER.activate(generation, self._assignment.size, KEY)
            endpoint = SEQUENCER.await_endpoint(timedelta(seconds=LIMIT_SECONDS))
            for descriptor in self._writable[: self._assignment.size - 1]:
                os.write(descriptor, f"{generation} {endpoint.address} {endpoint.port}\n".encode())
            return endpoint
        number, address, port = self._read_line().split()
        assert int(number) == generation
        return Endpoint(address, int(port))

    def find_departed(self, generation: int, limit_seconds: float) -> int | None:
        """No rank is heard of."""

    def close(self) -> None:
        """Nothing is to be closed: the pipes serve the next world too."""

    def _read_line(self) -> str:
        poller = select.poll()  # a process of many interrupted worlds has more than 1,024 files
        poller.register(self._readable, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            assert poller.poll(LIMIT_SECONDS * 1000), "another rank did not join"
            byte = os.read(self._readable, 1)
            assert byte, "the other ranks have exited"
            line += byte
        return line.decode()


def serve(commands: Connection, rank: int, readable: int, writable: tuple[int, ...]) -> None:
    """Run what comes until the other end is closed."""
    given = os.environ.get(BACKEND, "")
    while True:
        try:
            function, arguments, size, generation, backend = cloudpickle.loads(commands.recv_bytes())
        except EOFError:
            SEQUENCER.close()
            return
        worker = Worker(Slot("localhost", rank), 1)
        bootstrap = Bootstrap("job", Path("/nowhere/agent.sock"), worker, "127.0.0.1", LIMIT_SECONDS, LIMIT_SECONDS)
        exchange = PipeExchange(rank, size, readable, writable)
        RUNTIME._connect = lambda _, exchange=exchange: exchange
        RUNTIME._generation = generation
        os.environ.update({**bootstrap.environment(), BACKEND: backend or given})
        try:
            RUNTIME.init()
            outcome = (True, function(*arguments))
        except SystemExit:
            raise  # a forked child of the function ends
        except BaseException:  # noqa: BLE001 - the test is to see it
            outcome = (False, traceback.format_exc())
        finally:
            RUNTIME.shutdown()
        commands.send_bytes(cloudpickle.dumps(outcome))


def fork_ranks(line: socket.socket) -> list[int] | None:
    """Fork a rank for each request, and tell its end; returns a child's number and descriptors, None to the parent."""
    poller = select.poll()
    poller.register(line, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # the pid and the status pipe of each pidfd
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in children:
                poller.unregister(descriptor)
                pid, status = children.pop(descriptor)
                os.write(status, array("i", [os.waitpid(pid, 0)[1]]).tobytes())
                os.close(status)
                os.close(descriptor)
                continue
            request, descriptors, _, _ = socket.recv_fds(line, MOST_BYTES, _MOST_DESCRIPTORS)
            if not request:
                return None
            rank, folder, variables = pickle.loads(request)  # noqa: S301 - of the tests
            pid = os.fork()
            if not pid:
                for each in (line.detach(), *children, *(status for _, status in children.values())):
                    os.close(each)
                return [rank, *become_rank(folder, variables, descriptors)]
            for each in descriptors:
                os.close(each)
            pidfd = os.pidfd_open(pid)
            reading, writing = os.pipe()
            socket.send_fds(line, [str(pid).encode()], [pidfd, reading])
            os.close(reading)
            children[pidfd] = pid, writing
            poller.register(pidfd, select.POLLIN)


def become_rank(folder: Path, variables: dict[str, str], descriptors: list[int]) -> list[int]:
    """Take over what the tests have; returns the descriptors of a rank."""
    die_with_parent()
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for output, given in zip(OUTPUTS, descriptors, strict=False):
        os.dup2(given, output)
        os.close(given)
    os.register_at_fork(after_in_child=SEQUENCER.abandon)
    return descriptors[len(OUTPUTS) :]


def die_with_parent() -> None:
    """Let the kernel kill this process with its parent: a rank may block."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main() -> None:
    """Read the descriptor of the tests' line from the command line."""
    die_with_parent()
    torch.set_num_threads(1)
    faulthandler.enable()  # a crash, also of a forked child, says where
    faulthandler.register(signal.SIGQUIT)  # `Ranks` asks a rank that does not finish what it does
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")  # of torch's own compiler
    warnings.filterwarnings("ignore", "this worker sees a GPU")  # many tests train on the CPU beside one
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")  # of torch 2.11
    warnings.filterwarnings("ignore", "Guards may run slower")  # of torch on Python 3.13.0 alone
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"mxnet\.")  # of NumPy and SciPy
    gc.freeze()  # the ranks share what the imports have made, and no collection of theirs looks through it
    forked = fork_ranks(socket.socket(fileno=int(sys.argv[1])))
    if forked is not None:
        sys.argv[1:] = map(str, forked)
        rank, descriptor, readable, *writable = forked
        serve(Connection(descriptor), rank, readable, tuple(writable))


if __name__ == "__main__":
    main()
