"""MPI's groups, with a stub in MPI's place: what it knows of the workers must be what the job knows."""

from dataclasses import dataclass
from typing import cast

import pytest
import torch.distributed as dist

from tests.worker_runtime.backends.stubs import LIMIT
from worker_runtime.backends.mpi import Mpi


@dataclass
class StubMpi:
    """A group of MPI, which has its own idea of who is in it."""

    own_rank: int
    own_size: int

    def create(self, ranks: list[int]) -> "StubMpi":
        """MPI's group of all processes."""
        assert ranks == []
        return self

    def rank(self) -> int:
        """By MPI's own count."""
        return self.own_rank

    def size(self) -> int:
        """By MPI's own count."""
        return self.own_size


def put(monkeypatch: pytest.MonkeyPatch, mpi: object) -> None:
    monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupMPI", mpi, raising=False)


def test_all_ranks_have_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = StubMpi(1, 4)
    put(monkeypatch, mpi)
    assert cast("object", Mpi(4).connect("prefix", 1, 4, LIMIT)) is mpi


def test_some_ranks_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, None)
    assert Mpi(4).connect("prefix", 1, 2, LIMIT) is None


@pytest.mark.parametrize("own", [(0, 1), (0, 4), (1, 8)])
def test_workers_that_mpi_knows_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch, own: tuple[int, int]) -> None:
    put(monkeypatch, StubMpi(*own))
    with pytest.raises(RuntimeError, match=r"to MPI this worker is .* and to the job 1 of 4; .*mpirun -np 4.*HVD_BACK"):
        Mpi(4).connect("prefix", 1, 4, LIMIT)
