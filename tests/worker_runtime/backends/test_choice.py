"""Which backend is chosen, and what is said where a wish cannot be fulfilled."""

from dataclasses import replace

import pytest

from worker_runtime.backends.choice import Choice, choose, find_objection
from worker_runtime.backends.errors import BackendRefusedError
from worker_runtime.backends.features import Features
from worker_runtime.membership import Backend

GLOO, NCCL, UCC, MPI = Backend.GLOO, Backend.NCCL, Backend.UCC, Backend.MPI
CPU_BUILD = Features("2.13.0")
CUDA_BUILD = Features("2.13.0", has_nccl=True, devices=2)
EVERYTHING = Features("2.13.0", has_nccl=True, has_ucc=True, has_mpi=True, devices=2)


@pytest.mark.parametrize(
    ("wish", "features", "choice"),
    [
        (None, CPU_BUILD, Choice(GLOO, GLOO)),
        (None, CUDA_BUILD, Choice(GLOO, NCCL)),
        (None, EVERYTHING, Choice(GLOO, NCCL)),  # what is there is not chosen for being there
        (GLOO, EVERYTHING, Choice(GLOO, GLOO)),
        (NCCL, EVERYTHING, Choice(GLOO, NCCL)),
        (UCC, EVERYTHING, Choice(UCC, NCCL)),
        (MPI, EVERYTHING, Choice(MPI, NCCL)),
        (UCC, Features("2.13.0", has_ucc=True), Choice(UCC, GLOO)),
    ],
)
def test_what_is_chosen(wish: Backend | None, features: Features, choice: Choice) -> None:
    assert choose(wish, features) == choice
    assert (choice.of("cpu"), choice.of("cuda")) == (choice.cpu, choice.cuda)


@pytest.mark.parametrize(
    ("wish", "features", "words"),
    [
        (UCC, CUDA_BUILD, ("torch 2.13.0 has no UCC", "USE_UCC", "NGC", 'registers the name "ucc"')),
        (MPI, CUDA_BUILD, ("torch 2.13.0 has no MPI", "from source")),
        (NCCL, CPU_BUILD, ("torch 2.13.0 has no NCCL", "CUDA")),
        (NCCL, Features("2.13.0", has_nccl=True, devices=0), ("sees no GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES")),
    ],
)
def test_what_is_missing_is_refused_with_what_provides_it(
    wish: Backend, features: Features, words: tuple[str, ...]
) -> None:
    with pytest.raises(BackendRefusedError) as caught:
        choose(wish, features)
    assert caught.value.objection == find_objection(wish, features)
    assert all(word in str(caught.value) for word in words)
    assert "install ucc" not in str(caught.value)  # the package of that name is something else


@pytest.mark.parametrize("wish", Backend)
def test_there_is_no_objection_to_what_is_there(wish: Backend) -> None:
    assert find_objection(wish, EVERYTHING) == ""
    assert find_objection(GLOO, CPU_BUILD) == ""


@pytest.mark.parametrize("wish", [UCC, MPI])
def test_what_cannot_be_ended_after_a_loss_is_refused_where_the_job_is_to_outlive_it(wish: Backend) -> None:
    with pytest.raises(BackendRefusedError, match=r"cannot be ended when a worker is lost.*or --min-np"):
        choose(wish, EVERYTHING, is_elastic=True)


@pytest.mark.parametrize("wish", [None, GLOO, NCCL])
def test_a_job_that_outlives_its_workers_calls_nothing_done_that_is_under_way(wish: Backend | None) -> None:
    assert choose(wish, EVERYTHING, is_elastic=True) == replace(choose(wish, EVERYTHING), holds_host=True)
