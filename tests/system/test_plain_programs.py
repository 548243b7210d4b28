"""Programs that know nothing of hvdrun: what they are given, what they read, and jobs inside jobs."""

import os
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import kill
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

READS = "import os, sys\ndata = sys.stdin.buffer.read()\nprint(os.environ['HOROVOD_RANK'], len(data), data[:20])\n"
# Rank 0 ends when the inner job of rank 1 runs: they have slots of the same name.
OUTER = f"""{WAIT_FOR}
if os.environ["HOROVOD_RANK"] == "0":
    wait_for("inner runs")
    sys.exit(0)
sys.exit(subprocess.run([sys.executable, "-m", "hvdrun", "-np", "2", "sh", "-c", {{script!r}}]).returncode)
"""


def test_workers_have_the_caller_s_environment_and_directory_their_own_options_and_no_input(hvdrun: Launcher) -> None:
    (hvdrun.directory / "input").write_text("not for workers")
    words = ("sh", "-c", 'echo "$COLOUR"; pwd; cat; echo "$@"', "sh", "-np", "--help", "-H")
    with Path(hvdrun.directory, "input").open("rb") as stdin:
        finished = hvdrun("-np", "1", *words, environment={"COLOUR": "green  blue"}, stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == f"[0] green  blue\n[0] {hvdrun.directory}\n[0] -np --help -H\n"


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
def test_stdin_of_hvdrun_is_read_by_the_worker_that_is_named_alone(hvdrun: Launcher, *, forks: bool) -> None:
    hvdrun.write("read.py", READS)
    data = bytes(range(256)) * 4000
    (hvdrun.directory / "input").write_bytes(data)
    with Path(hvdrun.directory, "input").open("rb") as stdin:
        finished = hvdrun("-np", "3", "--stdin", "1", "python", "read.py", forks=forks, stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, "")
    expected = [f"[{rank}] {rank} 0 b''" for rank in (0, 2)] + [f"[1] 1 {len(data)} {data[:20]!r}"]
    assert sorted(finished.stdout.splitlines()) == sorted(expected)


def test_a_job_ends_although_its_input_does_not(hvdrun: Launcher) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stdin, os.fdopen(writer, "wb"):
        finished = hvdrun("-np", "2", "--stdin", "0", "true", stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize(
    ("then", "code", "said"),
    rest_nightly(
        [
            ("sleep 1; echo $HOROVOD_RANK of $HOROVOD_SIZE", 0, ["[1] [0] 0 of 2", "[1] [1] 1 of 2"]),
            ("exit 5", 5, []),
        ]
    ),
)
def test_an_hvdrun_inside_a_worker_is_a_job_of_its_own(hvdrun: Launcher, then: str, code: int, said: list[str]) -> None:
    hvdrun.write("train.py", OUTER.format(script=f"touch 'inner runs'; {then}"))
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == code
    assert sorted(finished.stdout.splitlines()) == said
    assert ("[1] hvdrun: rank " in finished.stderr) == (code != 0)


@pytest.mark.parametrize("victim", rest_nightly(["inner", "outer"]))
def test_kill_of_an_hvdrun_around_or_inside_another_leaves_nothing(hvdrun: Launcher, victim: str) -> None:
    script = "trap '' TERM; touch 'inner runs'; echo up; sleep 600; true"
    hvdrun.write("train.py", OUTER.format(script=script))
    running = hvdrun.start("-np", "2", "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[1\] \[{rank}\] up$", 60)
    (inner,) = hvdrun.processes("-m hvdrun -np 2 sh")
    kill(inner.pid if victim == "inner" else running.pid)
    running.wait()


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
@pytest.mark.parametrize("before", ["", "import worker_runtime.torch as hvd; hvd.init(); "])
def test_a_worker_that_imports_mpi4py_is_warned_that_mpi_does_not_know_the_job(
    hvdrun: Launcher, before: str, *, forks: bool
) -> None:
    pytest.importorskip("mpi4py")
    hvdrun.write("train.py", f"{before}import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI\n")
    finished = hvdrun("-np", "2", "python", "train.py", forks=forks)
    assert finished.returncode == 0, finished.stderr
    reported = "hvdrun: mpi4py does not know this job: in MPI each worker is rank 0 of 1"
    assert finished.stderr.count(reported) == (2 if forks or before else 1)  # by the workers, or by their agent
