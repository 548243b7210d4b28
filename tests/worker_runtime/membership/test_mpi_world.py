"""mpi4py beside hvd: played, and where it is installed, real."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rendezvous.bootstrap import Bootstrap
from rendezvous.core.model import Assignment, Slot, Worker
from worker_runtime.errors import MpiWorldError
from worker_runtime.membership.launchers import join_mpi_world

ROOT = Path(__file__).parents[3]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
LIMIT_SECONDS = 100
OF_MPIRUN = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")} | {
    "OMPI_COMM_WORLD_RANK": "1",
    "PMIX_NAMESPACE": "a",
}
OF_SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
OF_HVDRUN = Bootstrap("job", Path("/socket"), Worker(Slot("a", 1), 1), "127.0.0.1", 1.0, 1.0)
OF_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


class Mpi(ModuleType):
    """mpi4py.MPI as it is after its import."""

    def __init__(self, rank: int, size: int, *, is_initialized: bool) -> None:
        super().__init__("mpi4py.MPI")
        self.COMM_WORLD = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: size)
        self.is_initialized, self.is_finalized = is_initialized, False
        self.Is_initialized, self.Is_finalized = lambda: self.is_initialized, lambda: self.is_finalized
        self.Init_thread = lambda: setattr(self, "is_initialized", True)
        self.Finalize = lambda: setattr(self, "is_finalized", True)


@pytest.mark.parametrize(
    ("environment", "world", "is_initialized", "is_right"),
    [
        (OF_MPIRUN, (1, 2), False, True),
        (OF_MPIRUN, (1, 2), True, True),
        (OF_MPIRUN, (0, 1), False, False),
        (OF_SRUN | {"PMIX_RANK": "1"}, (1, 2), False, True),
        (OF_SRUN, (1, 2), False, False),
        (OF_TORCHRUN | OF_MPIRUN, (1, 2), False, False),
        (OF_TORCHRUN, (0, 1), True, False),
        (OF_MPIRUN | OF_HVDRUN.environment(), (0, 2), True, False),
    ],
)
def test_the_world_of_mpi_is_the_job_or_the_worker_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    world: tuple[int, int],
    *,
    is_initialized: bool,
    is_right: bool,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi := Mpi(*world, is_initialized=is_initialized))
    ends: list[tuple[object, ...]] = []
    monkeypatch.setattr("atexit.register", lambda *end: ends.append(end))
    numbers = Assignment(1, 2, 1, 2, 0, 1)
    if not is_right:
        with pytest.raises(MpiWorldError, match=r"rank 1 of 2 in the job; start the script with 'mpirun -np 2'"):
            join_mpi_world(environment, numbers, list)
        return
    left: list[bool] = []
    assert join_mpi_world(environment, numbers, lambda: left.append(mpi.is_finalized)) is mpi
    assert mpi.is_initialized
    for function, *arguments in ends:
        function(*arguments)  # type: ignore[operator]  # of atexit
    assert (left, mpi.is_finalized) == (([], False) if is_initialized else ([False], True))


def test_a_worker_that_is_alone_needs_no_mpi_and_is_refused_in_a_world_that_only_mpi_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Assignment(0, 1, 0, 1, 0, 1)
    assert join_mpi_world({}, alone, list, loads=True) is None
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi := Mpi(0, 4, is_initialized=False))
    assert join_mpi_world({}, alone, list) is None
    mpi.Init_thread()
    with pytest.raises(MpiWorldError, match="rank 0 of 4"):
        join_mpi_world({}, alone, list)
    mpi.Finalize()
    assert join_mpi_world({}, alone, list) is None


SOCKEYE = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
"""
HOROVOD = """
import worker_runtime.torch as hvd
hvd.init()
assert hvd.mpi_threads_supported()
from mpi4py import MPI
assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size == hvd.size() == 2
assert MPI.COMM_WORLD.rank == hvd.rank()
if hvd.rank() == 1:
    raise SystemExit(CODE)
hvd.join()
"""


@pytest.mark.skipif(MPIRUN is None or find_spec("mpi4py") is None, reason="no mpirun or mpi4py: pip install '.[dev]'")
@pytest.mark.parametrize(
    ("head", "code"),
    [
        pytest.param(SOCKEYE, 0, id="as Sockeye does"),
        pytest.param("", 0, id="as Horovod's guide does", marks=pytest.mark.nightly),
        pytest.param(SOCKEYE, 3, id="one fails", marks=pytest.mark.nightly),
    ],
)
def test_a_program_under_mpirun_uses_both_and_ends(tmp_path: Path, head: str, code: int) -> None:
    assert MPIRUN is not None
    script = head + HOROVOD.replace("CODE", str(code) if code else "hvd.join() * 0")
    finished = subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", script],
        cwd=ROOT,
        # Open MPI leaves its shared memory where it kills its processes; in /dev/shm other tests would find it.
        env={**os.environ, "TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (finished.returncode != 0) == (code != 0), finished.stderr
