"""NCCL: what moves CUDA tensors, on the GPUs' own streams.

Waiting for a work lets the current stream wait, and not the host: a work's own wait with a time limit would hold the
host up and, when the limit is over, abort the group. So the limits of CUDA operations are others: the agent notices a
lost peer, and each member that hears of it aborts the group, which ends what is pending. In a job that outlives its
workers the host waits too, by looking again and again: an operation counts as done once all ranks have its result.

For that the groups connect without blocking, since a blocked connecting could not be aborted, and torch's own handling
of errors, which ends the process, is off in them: TORCH_NCCL_ASYNC_ERROR_HANDLING=0 holds while a group is made, unless
the user has set it; groups that the user makes are not touched.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from worker_runtime.groups.torch_groups import Interruptible, TorchGroup, Work
from worker_runtime.groups.torch_store import OpenStore

# An abort has been reported never to return when a peer is stopped; the process is then lost, and its agent ends it.
ABORT_LIMIT_SECONDS = 5.0

_LOOK_SECONDS = 50e-6  # between two looks whether a work has ended, where the host waits
_SLICE = timedelta(milliseconds=20)

_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_FORMER_NAME = "NCCL_ASYNC_ERROR_HANDLING"  # which torch reads as well
_SHARED = "Duplicate GPU"  # all that distinguishes this error of NCCL from others


@dataclass(frozen=True, slots=True)
class Nccl:
    """How NCCL's groups are made.

    open_store: opens a store of torch's for a group: NCCL uses it from threads of its own.
    local_rank: this worker's number on its host; None where it is not known.
    operation_limit: the time limit of each collective.
    holds_host: see `Choice`.
    """

    open_store: OpenStore
    local_rank: int | None
    operation_limit: timedelta
    holds_host: bool = False

    def make(
        self, prefix: str, rank: int, size: int, device: str, limit: timedelta
    ) -> tuple[TorchGroup, Interruptible]:
        """Make a group; NCCL connects its members in the first operation. See `torch_groups.MakeGroup`.

        Raises:
            RuntimeError: NCCL cannot.
        """
        del device
        nccl: Any = dist.distributed_c10d.ProcessGroupNCCL
        options = nccl.Options()
        options.config.blocking = 0
        options._timeout = self.operation_limit  # noqa: SLF001 - torch's only way to choose it
        with _without_error_handling():
            made = nccl(self.open_store(prefix, rank, limit), rank, size, options)
        group = NcclGroup(made, self.local_rank, holds_host=self.holds_host)
        return group, group


class NcclGroup:
    """A `TorchGroup` of NCCL.

    Args:
        group: torch's.
        local_rank, holds_host: see `Nccl`.
    """

    def __init__(self, group: Any, local_rank: int | None, *, holds_host: bool = False) -> None:  # noqa: ANN401 - torch leaves it untyped
        self._group = group
        self._local_rank = local_rank
        self._holds_host = holds_host
        self._lock = threading.Lock()
        self._abort: threading.Thread | None = None
        self._abort_deadline = 0.0

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Combine in place."""
        return self._start(tensor, lambda: self._group.allreduce(tensor, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""
        return self._start(tensor, lambda: self._group.broadcast(tensor, root))

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Collect tensors of one shape."""
        return self._start(input_tensor, lambda: self._group.allgather(output_tensors, input_tensor))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
    ) -> Work:
        """Give each rank some rows, and get some from each."""
        return self._start(
            input,
            lambda: self._group.alltoall_base(output, input, output_split_sizes, input_split_sizes),
        )

    @property
    def is_aborted(self) -> bool:
        """Whether what was pending was made to end: its results are worth nothing."""
        return self._abort is not None

    def shut_down(self) -> bool:
        """Abort what is pending, within a limit; see `Interruptible`."""
        with self._lock:
            if self._abort is None:
                # Nothing ends an abort that does not return, but for the end of the process.
                self._abort = threading.Thread(target=self._run_abort, name="abort of NCCL", daemon=True)
                self._abort_deadline = time.monotonic() + ABORT_LIMIT_SECONDS
                self._abort.start()
        self._abort.join(max(0.0, self._abort_deadline - time.monotonic()))
        return not self._abort.is_alive()

    def find_silent(self, limit_seconds: float) -> str:
        """None: NCCL watches its connections itself."""
        del limit_seconds
        return ""

    def shutdown(self) -> None:
        """End it; one that was aborted has ended."""
        if self._abort is None:
            self._group.shutdown()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        self._group._set_default_timeout(timeout)  # noqa: SLF001 - torch's only way to change it

    def _run_abort(self) -> None:
        with suppress(RuntimeError):
            self._group.abort()

    def _start(self, tensor: torch.Tensor, begin: Callable[[], Work]) -> Work:
        try:
            return StreamWork(begin(), self, holds_host=self._holds_host)
        except RuntimeError as error:
            if _SHARED in str(error):
                raise SharedDeviceError(str(tensor.device), self._local_rank) from None
            raise


class SharedDeviceError(RuntimeError):
    """NCCL refused a group since two of its members use one GPU.

    Cause: Two workers of a host use the same GPU.
    Remedy: Call `torch.cuda.set_device(hvd.local_rank())` before the first CUDA tensor.
    """

    def __init__(self, device: str, local_rank: int | None) -> None:
        who = "this worker" if local_rank is None else f"this one, of local rank {local_rank},"
        super().__init__(
            f"two workers of one host use the same GPU, which NCCL refuses ({who} uses {device}): call "
            "torch.cuda.set_device(hvd.local_rank()) before the first CUDA tensor is made, or let them share it with "
            "--backend gloo"
        )


class StreamWork:
    """A piece of communication that the current stream waits for, when it is waited for.

    Args:
        work: torch's.
        group: of which it is.
        holds_host: see `Choice`.
    """

    def __init__(self, work: Any, group: NcclGroup, *, holds_host: bool = False) -> None:  # noqa: ANN401 - torch leaves it untyped
        self._work = work
        self._group = group
        self._holds_host = holds_host

    def wait(self, timeout: timedelta = _SLICE) -> bool:
        """Have the current stream wait for its end; the host continues, unless it is held.

        Args:
            timeout: how long the host is held at most.

        Raises:
            RuntimeError: it has failed, or was aborted; or has not ended in time.
        """
        self._work.wait()
        if self._holds_host:
            self._hold_host(time.monotonic() + timeout.total_seconds())
        # Of a work that was aborted torch says that it ended well: what is in its tensors is unknown.
        if self._group.is_aborted or (self._work.is_completed() and not self._work.is_success()):
            raise RuntimeError("NCCL failed, or its group was aborted since a peer was lost")
        return True

    def _hold_host(self, deadline_seconds: float) -> None:
        while not (self._work.is_completed() or self._group.is_aborted):
            if time.monotonic() > deadline_seconds:
                raise RuntimeError("NCCL has not ended in time")
            time.sleep(_LOOK_SECONDS)

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._work.is_completed())


@contextmanager
def _without_error_handling() -> Iterator[None]:
    """Within it, groups are made whose errors end no process, unless the user has said otherwise."""
    if _ERROR_HANDLING in os.environ or _FORMER_NAME in os.environ:
        yield
        return
    os.environ[_ERROR_HANDLING] = "0"
    try:
        yield
    finally:
        del os.environ[_ERROR_HANDLING]
