"""What an installation says of itself."""

import pytest
import torch

from tests.worker_runtime.ranks import RankPool
from worker_runtime import capabilities


def test_there_is_gloo_and_no_mpi() -> None:
    assert (capabilities.gloo_built(), capabilities.gloo_enabled()) == (True, True)
    assert (capabilities.mpi_built(), capabilities.mpi_enabled()) == (False, False)
    assert (capabilities.ddl_built(), capabilities.ccl_built()) == (False, False)


def test_the_accelerators_are_those_of_torch() -> None:
    assert capabilities.cuda_built() == (torch.version.cuda is not None)
    assert capabilities.rocm_built() == (torch.version.hip is not None)


@pytest.mark.parametrize(
    ("is_there", "version", "expected"),
    [(False, (), 0), (True, (2, 18, 5), 21805), (True, (2, 21), 22100), (True, (2, 26, 2, "x"), 22602)],
)
def test_the_version_of_nccl_is_one_number(
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,  # noqa: FBT001 - a parameter of pytest
    version: tuple[int | str, ...],
    expected: int,
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: is_there)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: version)
    assert capabilities.nccl_built() == expected


def test_whether_mpi_has_threads_cannot_be_told() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        capabilities.mpi_threads_supported()


def test_whether_mpi_has_threads_cannot_be_told_when_initialised_either(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="MPI is not enabled"):
            capabilities.mpi_threads_supported()

    ranks.run(body, size=1)
