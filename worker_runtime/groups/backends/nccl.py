"""NCCL groups, for CUDA tensors.

A wait for a work makes the current stream wait, and not the host: torch's wait with a time limit would block the host,
and abort the group after the limit. So CUDA operations have no time limit: the agent notices a lost peer, and each
member that learns of it aborts the group, which ends pending operations. In an elastic job the host waits too, by
polling: an operation counts as done only when all ranks have its result.

So groups connect without blocking, since a blocked connection attempt could not be aborted, and torch's error handling,
which ends the process, is off in them: TORCH_NCCL_ASYNC_ERROR_HANDLING is 0 while a group is created, unless the user
has set it. Groups of the user are not affected.

**While a group connects** torch holds the lock that an abort needs, and tries for 30 minutes: a peer that is lost by
then never comes. An abort under an operation that connects further channels is not noticed by that operation, which
tries as long. TORCH_NCCL_NONBLOCKING_TIMEOUT ends such a try after some seconds, unless the user has set it. A try that
ended before its operation began (the error comes from NCCLUtils.cpp) is made again; any other counts as failed.

**The caching allocator** knows for each block of memory only the stream on which it was allocated: it gives a freed
block to the next tensor of that stream, and waits for no other. NCCL's kernels run on a stream of their group, which
waits for the current stream when an operation begins. From then on the work holds its tensors, and its `wait()` makes
the current stream wait for NCCL's before it lets go of them (torch 2.7 records NCCL's stream on them instead). So no
memory is reused under a kernel, provided that each work is waited for; one that is not keeps its tensors until torch's
watchdog has seen its end.

**`record_stream`** makes the allocator hold a freed block back until all work is done that another stream had at that
time. It costs an event for each freed tensor, and when the block returns depends on the GPU's progress. So it is called
only where streams change hands, in `SideStream.hand_over`: an operation's buffers belong to the side stream, and its
result is read on the stream of the thread that takes it.

**The end of a process.** `abort()` ends the kernels in flight. `shutdown()` waits for their end, which never comes when
a peer is lost: so a runtime with operations in flight aborts its groups, and shuts them down otherwise. torch aborts a
group that is dropped without either, and warns. When a process is killed, the driver ends its kernels and frees its
memory. The kernels of its peers keep waiting for it, and occupy their GPUs until the peers abort. A process whose abort
does not return in time exits at once, without Python's exit hooks: those would wait for the GPU too.
"""

import os
import re
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

# torch cuts fractions of a second off before it compares, so that a try takes a second more.
_TRY_SECONDS = 10
# An abort waits for a try. There are reports of aborts that never return when a peer is stopped; then the process must
# exit.
ABORT_LIMIT_SECONDS = _TRY_SECONDS + 1 + 5.0

_LOOK_SECONDS = 50e-6  # between two polls of a work, when the host waits
_SLICE = timedelta(milliseconds=20)

_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_FORMER_NAME = "NCCL_ASYNC_ERROR_HANDLING"  # torch reads it too
_TRY_LIMIT = "TORCH_NCCL_NONBLOCKING_TIMEOUT"  # seconds; torch reads it once in a process
_SHARED = "Duplicate GPU"  # the only words that distinguish this error of NCCL
_NOT_BEGUN = re.compile(r"NCCL timeout in: \S*NCCLUtils\.cpp")


@dataclass(frozen=True, slots=True)
class Nccl:
    """Creates NCCL's groups.

    open_store: opens a torch store for a group, which NCCL uses from its own threads.
    local_rank: this worker's local rank; None if it is unknown.
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
        """Create a group; NCCL connects its members in the first operation. See `torch_groups.MakeGroup`.

        Raises:
            RuntimeError: NCCL cannot create it.
        """
        del device
        nccl: Any = dist.distributed_c10d.ProcessGroupNCCL
        options = nccl.Options()
        options.config.blocking = 0
        options._timeout = self.operation_limit  # noqa: SLF001 - torch has no public way
        os.environ.setdefault(_TRY_LIMIT, str(_TRY_SECONDS))
        with _without_error_handling():
            created = nccl(self.open_store(prefix, rank, limit), rank, size, options)
        group = NcclGroup(created, self.local_rank, self.operation_limit, holds_host=self.holds_host)
        return group, group


class NcclGroup:
    """A `TorchGroup` of NCCL.

    Args:
        group: torch's group.
        local_rank, connect_limit, holds_host: see `Nccl`; its operation limit also limits how long members connect.
    """

    def __init__(
        self,
        group: Any,
        local_rank: int | None,
        connect_limit: timedelta,
        *,
        holds_host: bool = False,
    ) -> None:
        self._group = group
        self._local_rank = local_rank
        self._connect_limit = connect_limit
        self._holds_host = holds_host
        self._lock = threading.Lock()
        self._abort: threading.Thread | None = None
        self._has_aborted = threading.Event()
        self._abort_deadline = 0.0

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Reduce in place."""
        return self._start(tensor, lambda: self._group.allreduce(tensor, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""
        return self._start(tensor, lambda: self._group.broadcast(tensor, root))

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Gather tensors of one shape."""
        return self._start(input_tensor, lambda: self._group.allgather(output_tensors, input_tensor))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
    ) -> Work:
        """Send some rows to each rank, and receive rows from each."""
        return self._start(
            input,
            lambda: self._group.alltoall_base(output, input, output_split_sizes, input_split_sizes),
        )

    @property
    def is_aborted(self) -> bool:
        """Whether the group was aborted: results of operations that were pending are invalid."""
        return self._abort is not None

    def is_completed(self, work: Any) -> bool:
        """Whether a work has completed or failed. No abort begins meanwhile; while one runs, the answer is False.

        torch would wait for the abort, and hold Python's lock.
        """
        with self._lock:
            if self._abort is None:
                return bool(work.is_completed())
        return self._has_aborted.wait(_SLICE.total_seconds()) and bool(work.is_completed())

    def shut_down(self) -> Callable[[], bool]:
        """Begin to abort pending operations; see `Interruptible`."""
        with self._lock:
            if self._abort is None:
                # An abort that does not return ends only with the process.
                self._abort = threading.Thread(target=self._run_abort, name="abort of NCCL", daemon=True)
                self._abort_deadline = time.monotonic() + ABORT_LIMIT_SECONDS
                self._abort.start()
        return lambda: self._has_aborted.wait(max(0.0, self._abort_deadline - time.monotonic()))

    def find_silent(self, limit_seconds: float) -> str:
        """Return "": NCCL watches its connections itself."""
        del limit_seconds
        return ""

    def shutdown(self) -> None:
        """Shut the group down, unless it was aborted; abort it if that fails, since a peer is lost."""
        if self._abort is None:
            try:
                self._group.shutdown()
            except RuntimeError:
                self.shut_down()()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        self._group._set_default_timeout(timeout)  # noqa: SLF001 - torch has no public way

    def _run_abort(self) -> None:
        try:
            with suppress(RuntimeError):  # the group has failed already
                self._group.abort()
        finally:
            self._has_aborted.set()

    def _start(self, tensor: torch.Tensor, begin: Callable[[], Work]) -> Work:
        deadline = time.monotonic() + self._connect_limit.total_seconds()
        while True:
            try:
                return StreamWork(begin(), self, holds_host=self._holds_host)
            except RuntimeError as error:
                if _SHARED in str(error):
                    raise SharedDeviceError(str(tensor.device), self._local_rank) from None
                is_over = self.is_aborted or time.monotonic() > deadline
                if is_over or _NOT_BEGUN.search(str(error)) is None:
                    raise


class SharedDeviceError(RuntimeError):
    """NCCL rejects a group because two of its members use the same GPU.

    Cause: Two workers of a host use the same GPU.
    Remedy: Call `torch.cuda.set_device(hvd.local_rank())` before the first CUDA tensor.
    """

    def __init__(self, device: str, local_rank: int | None) -> None:
        who = "this worker" if local_rank is None else f"this one, of local rank {local_rank},"
        super().__init__(
            f"two workers of one host use the same GPU, which NCCL rejects ({who} uses {device}): call "
            "torch.cuda.set_device(hvd.local_rank()) before the first CUDA tensor, or share the GPU with --backend gloo"
        )


class StreamWork:
    """A work whose wait makes the current stream wait.

    Args:
        work: torch's work.
        group: its group.
        holds_host: see `Choice`.
    """

    def __init__(self, work: Any, group: NcclGroup, *, holds_host: bool = False) -> None:
        self._work = work
        self._group = group
        self._holds_host = holds_host

    def wait(self, timeout: timedelta = _SLICE) -> bool:
        """Make the current stream wait; the host waits too if `holds_host`.

        Args:
            timeout: the time limit of the host's wait.

        Raises:
            RuntimeError: the work has failed, was aborted, or did not complete in time.
        """
        if self._holds_host:
            self._hold_host(time.monotonic() + timeout.total_seconds())
        self._raise_if_aborted()
        self.is_completed()  # looks for an error, which the wait raises; torch's is_success() raises always
        self._work.wait()
        # torch reports an aborted work as successful, though the content of its tensors is undefined.
        self._raise_if_aborted()
        return True

    def _raise_if_aborted(self) -> None:
        if self._group.is_aborted:
            raise RuntimeError("NCCL's group was aborted since a peer was lost")

    def _hold_host(self, deadline: float) -> None:
        while not (self._group.is_aborted or self.is_completed()):
            if time.monotonic() > deadline:
                raise RuntimeError("NCCL did not complete in time")
            time.sleep(_LOOK_SECONDS)

    def is_completed(self) -> bool:
        """Whether it has completed or failed; see `NcclGroup.is_completed`."""
        return self._group.is_completed(self._work)


@contextmanager
def _without_error_handling() -> Iterator[None]:
    """A context in which groups are created whose errors do not end the process, unless the user has set that."""
    if _ERROR_HANDLING in os.environ or _FORMER_NAME in os.environ:
        yield
        return
    os.environ[_ERROR_HANDLING] = "0"
    try:
        yield
    finally:
        del os.environ[_ERROR_HANDLING]
