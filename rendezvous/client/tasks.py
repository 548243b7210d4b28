"""A worker's calls for tasks, to its agent; blocking.

They are tried again for as long as the worker lives: one whose agent has gone is ended by others.
"""

import os
import time
from collections.abc import Callable
from itertools import chain
from typing import IO, TypeVar

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.bootstrap import Bootstrap
from rendezvous.client.calls import OPTIONS, RETRY_SECONDS, name_socket, raise_final
from rendezvous.wire import codec
from rendezvous.wire.tasks import PIECE_BYTES, OutcomeHead

ResultT = TypeVar("ResultT")


class TaskClient:
    """A worker's way to the tasks of its job.

    Close it before a task runs: a process that forks with an open channel cannot rely on gRPC in the child.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._worker = bootstrap.worker
        self._where = str(bootstrap.socket)
        options = (*OPTIONS, ("grpc.min_reconnect_backoff_ms", 50))
        self._channel = grpc.insecure_channel(name_socket(bootstrap.socket), options=options)
        self._stub = pb_grpc.RendezvousStub(self._channel)

    def fetch(self, after: int, file: IO[bytes]) -> int | None:
        """Wait for the task after this one, and write it into an empty file: its number; None when there is none.

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
        """Say what has become of a task; the file has the bytes of it.

        Raises:
            CallRefusedError: the job does not want it.
        """
        head = codec.encode(OutcomeHead(self._worker, number, file.seek(0, os.SEEK_END), failed, follows_another))

        def deliver() -> None:
            file.seek(0)
            pieces = iter(lambda: file.read(PIECE_BYTES), b"")
            parts = chain((pb.OutcomePart(head=head),), (pb.OutcomePart(data=piece) for piece in pieces))
            self._stub.DeliverOutcome(parts, wait_for_ready=True)

        self._retry(deliver)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _retry(self, call: Callable[[], ResultT]) -> ResultT:
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                raise_final(error, self._where)
            time.sleep(RETRY_SECONDS)
