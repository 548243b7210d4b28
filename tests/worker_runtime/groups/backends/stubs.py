"""Groups and works that do what a test says, and note what they were asked."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.waiting import LIMIT_SECONDS
from worker_runtime.groups.gloo import Gloo

LIMIT = timedelta(seconds=LIMIT_SECONDS)


class StubWork:
    """A work that ends on order."""

    def __init__(self, *, is_ended: bool = True, error: str = "") -> None:
        self.limits: list[timedelta | None] = []
        self.looks = 0
        self.error = error
        self._end = threading.Event()
        if is_ended:
            self._end.set()

    def end(self) -> None:
        """Complete."""
        self._end.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As a library that heeds no time limit."""
        self.limits.append(timeout)
        assert self._end.wait(LIMIT.total_seconds())
        if self.error:
            raise RuntimeError(self.error)
        return True

    def is_completed(self) -> bool:
        """Whether it was ordered to end."""
        self.looks += 1
        return self._end.is_set()

    def is_success(self) -> bool:
        """Whether it ended well."""
        return self._end.is_set() and not self.error


class StubGroup:
    """A group that notes each call and hands out the works that it was given, without touching a tensor."""

    def __init__(self, work: StubWork | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.work = work or StubWork()

    def __getattr__(self, name: str) -> Callable[..., StubWork]:
        def call(*arguments: object) -> StubWork:
            self.calls.append((name, *(argument for argument in arguments if not isinstance(argument, list))))
            return self.work

        return call

    @property
    def names(self) -> list[str]:
        """The methods that were called."""
        return [name for name, *_ in self.calls]


class StubConnections:
    """Connections that remember that they were ended."""

    def __init__(self) -> None:
        self.ends = 0

    def shut_down(self) -> Callable[[], bool]:
        """End them."""
        self.ends += 1
        return lambda: True

    def find_silent(self, limit_seconds: float) -> str:
        """No host."""
        del limit_seconds
        return ""


def find_no_stranger(*_: object) -> tuple[str, list[int]]:
    """As the sequencer compares connections, where a rank does not know them."""
    return "", []


def run_members(size: int, member: Callable[[int, Gloo], object]) -> list[Any]:
    """What each of the members of a job returns or raises, all in this process, with what makes gloo's groups."""
    store = HashStore()
    with ThreadPoolExecutor(size) as threads:
        gloo = Gloo(store, find_no_stranger, "127.0.0.1", LIMIT)
        futures = [threads.submit(member, rank, gloo) for rank in range(size)]
        return [future.exception(2 * LIMIT.total_seconds()) or future.result() for future in futures]


def make_gloo_group(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    """gloo, as a plug-in would make its groups."""
    group, _ = Gloo(store, find_no_stranger, "127.0.0.1", limit).make("plug-in", rank, size, "cpu", limit)
    return group


class Unreduced:
    """A group whose allreduce succeeds and does nothing."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> StubWork:
        """Leave the input as it is."""
        del tensor, op
        return StubWork()

    def shutdown(self) -> None:
        """There is none, as in some libraries."""
        raise RuntimeError("it does not support shutdown")
