"""A worker's calls for tasks, to its agent; blocking.

They are retried as long as the worker lives: the watchdog kills a worker whose agent is lost.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, TypeVar

import grpc

from protos import rendezvous_pb2 as pb
from rendezvous.bootstrap import Bootstrap
from rendezvous.client.calls import RETRY_SECONDS, connect_to_agent, raise_final
from rendezvous.wire import codec
from rendezvous.wire.tasks import PIECE_BYTES, OutcomeHead

ResultT = TypeVar("ResultT")


def read_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file on disk, from its beginning; its position stays."""
    file.flush()
    position = 0
    while piece := os.pread(file.fileno(), PIECE_BYTES, position):
        yield piece
        position += len(piece)


class TaskClient:
    """Fetches a job's tasks for one worker, and delivers their outcomes.

    Close it before a task runs: gRPC does not work in the child of a process that forks with an open channel.

    Args:
        bootstrap: the worker, and how it reaches its agent.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._worker = bootstrap.worker
        self._where = str(bootstrap.socket)
        self._channel, self._stub = connect_to_agent(bootstrap.socket)

    def fetch(self, after: int, file: IO[bytes]) -> int | None:
        """Wait for the next task, write it into the file, and return its number; None if there are no more.

        after: the number of the last task.
        file: its former content is deleted.

        Raises:
            CallRefusedError: the job has no tasks, or does not know this worker.
        """
        request = pb.FetchTaskRequest(worker=codec.encode_worker(self._worker), after=after)

        def fetch() -> int | None:
            file.seek(0)
            file.truncate()
            number = None
            for part in self._stub.FetchTask(request, wait_for_ready=True):
                number = number or part.number
                file.write(part.data)
            return number

        return self._retry(fetch)

    def deliver(self, number: int, file: IO[bytes], *, failed: bool, follows_another: bool = False) -> None:
        """Deliver the outcome of a task, whose bytes are in the file.

        Each try reads at positions of its own: gRPC's thread of a broken try may still read.

        Raises:
            CallRefusedError: the job does not accept it.
        """
        head = codec.encode(OutcomeHead(self._worker, number, file.seek(0, os.SEEK_END), failed, follows_another))

        def deliver() -> None:
            parts = chain((pb.OutcomePart(head=head),), (pb.OutcomePart(data=piece) for piece in read_pieces(file)))
            self._stub.DeliverOutcome(parts, wait_for_ready=True)

        self._retry(deliver)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _retry(self, call: Callable[[], ResultT]) -> ResultT:
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                raise_final(error, self._where)
            time.sleep(RETRY_SECONDS)
