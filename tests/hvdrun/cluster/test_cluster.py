"""Real jobs of functions, from a program that is pytest: one warm cluster for most of them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hvdrun
from hvdrun.cluster.errors import JobEndedError, JobRefusedError, RemoteError, RemoteTraceback, UnsendableError
from hvdrun.errors import LaunchError, UsageError
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.system


class SillyError(Exception):
    """Of the program's own module."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"no luck on {rank}")
        self.rank = rank


def sum_ranks(factor: int) -> tuple[int, float]:
    """What needs all workers."""
    import torch  # noqa: PLC0415 - in the workers alone

    import worker_runtime.torch as hvd  # noqa: PLC0415 - in the workers alone

    hvd.init()
    return hvd.rank(), hvd.allreduce(torch.tensor(float(hvd.rank() * factor)), op=hvd.Sum).item()


def find_descendants() -> set[int]:
    """All processes beneath this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module", autouse=True)
def _ends() -> Iterator[None]:
    """Nothing of all clusters is left at the end."""
    before = find_descendants()
    yield
    wait_until(lambda: find_descendants() <= before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[hvdrun.Cluster]:
    """Two workers, forked from a process that has imported torch."""
    with hvdrun.Cluster(num_proc=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare() -> Iterator[hvdrun.Cluster]:
    """Two workers whose functions use no torch, which nothing imports for them, also not after a loss."""
    with hvdrun.Cluster(num_proc=2, no_prefork=True) as cluster:
        yield cluster


def get_pids(cluster: hvdrun.Cluster) -> list[int]:
    return cluster.run(os.getpid)


def test_a_cluster_shows_its_size_and_state() -> None:
    cluster = hvdrun.Cluster(num_proc=2, no_prefork=True)
    assert repr(cluster) == "<Cluster of 2 workers, not started>"
    with cluster:
        assert repr(cluster) == "<Cluster of 2 workers, started>"
    assert repr(cluster) == "<Cluster of 2 workers, closed>"


def test_results_come_by_rank_and_the_workers_stay_the_same(cluster: hvdrun.Cluster) -> None:
    pids = get_pids(cluster)
    offset = 1
    assert cluster.run(sum_ranks, (10,)) == [(0, 10.0), (1, 10.0)]
    assert cluster.run(lambda *, by: int(os.environ["HOROVOD_RANK"]) + offset + by, kwargs={"by": 5}) == [6, 7]
    assert get_pids(cluster) == pids


def test_the_first_exception_is_raised_itself_and_the_next_function_runs_on_the_same_workers(
    cluster: hvdrun.Cluster,
) -> None:
    def fail() -> None:
        rank, _ = sum_ranks(1)
        if rank == 1:
            raise SillyError(rank)
        sum_ranks(2)  # waits for the other

    pids = get_pids(cluster)
    with pytest.raises(SillyError, match="no luck on 1") as caught:
        cluster.run(fail)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "raise SillyError(rank)" in str(caught.value.__cause__)
    assert cluster.run(sum_ranks, (1,)) == [(0, 1.0), (1, 1.0)]
    assert get_pids(cluster) == pids


def test_output_of_the_workers_comes_before_their_results(
    cluster: hvdrun.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def speak(number: int) -> None:
        print(f"line {number}\npart {number}", end="")  # noqa: T201 - the test reads this output

    for number in range(5):
        cluster.run(speak, (number,))
        lines = sorted(capsys.readouterr().out.splitlines())
        assert lines == [f"[{rank}] {text} {number}" for rank in range(2) for text in ("line", "part")]


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda: os.sys.exit(3), RemoteError, "SystemExit: 3"),  # type: ignore[attr-defined]  # os has it
        (threading.Lock, UnsendableError, r"rank [01]: what the function returned cannot .*: it is a _thread.lock"),
    ],
)
def test_a_wrong_function_is_reported_in_one_sentence(
    cluster: hvdrun.Cluster, function: Callable[[], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        cluster.run(function)


def test_a_worker_that_dies_ends_the_job_with_its_last_words_and_is_replaced_for_the_next_function(
    cluster: hvdrun.Cluster,
) -> None:
    def die() -> None:
        rank, _ = sum_ranks(1)
        if rank == 1:
            print("last words", flush=True)  # noqa: T201 - the test reads this output
            os._exit(7)
        sum_ranks(1)  # fails as well, and is not the cause

    pids = get_pids(cluster)
    with pytest.raises(JobEndedError, match=r"rank 1 .* failed with exit code 7") as caught:
        cluster.run(die)
    assert (caught.value.rank, caught.value.returncode, caught.value.last_lines) == (1, 7, ("last words",))
    assert caught.value.outcome == cluster.outcome is not None
    assert set(get_pids(cluster)).isdisjoint(pids)


def test_a_worker_that_dies_while_no_function_runs_is_replaced_for_the_next_one(bare: hvdrun.Cluster) -> None:
    pids = get_pids(bare)
    os.kill(pids[0], signal.SIGKILL)
    job = bare._job
    assert job is not None
    wait_until(job.has_ended)
    assert set(get_pids(bare)).isdisjoint(pids)


def test_a_function_runs_on_new_workers_when_one_had_died_before_it_and_the_job_is_still_ending(tmp_path: Path) -> None:
    ended = tmp_path / "got SIGTERM"

    def stay() -> int:
        signal.signal(signal.SIGTERM, lambda *_: ended.touch())
        return os.getpid()

    with hvdrun.Cluster(num_proc=2, no_prefork=True, grace=1.0) as cluster:
        pids = cluster.run(stay)
        os.kill(pids[1], signal.SIGKILL)
        wait_until(ended.exists)
        assert set(get_pids(cluster)).isdisjoint(pids)


def test_a_forked_child_of_the_program_has_a_worker_of_its_own_and_leaves_the_other_alone(tmp_path: Path) -> None:
    with hvdrun.Cluster(num_proc=1, no_prefork=True) as cluster:
        pids = get_pids(cluster)
        child = os.fork()
        if child == 0:
            try:
                (tmp_path / "pids").write_text(json.dumps(get_pids(cluster)))
                cluster.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert set(json.loads((tmp_path / "pids").read_text())).isdisjoint(pids)
        assert get_pids(cluster) == pids


def test_a_worker_that_ends_with_zero_inside_the_function_has_not_returned(bare: hvdrun.Cluster) -> None:
    def leave(rank: str | None = None) -> None:
        if rank in {None, os.environ["HOROVOD_RANK"]}:
            os._exit(0)

    with pytest.raises(JobEndedError, match=r"rank 1 .* exit code 0 before its function had returned"):
        bare.run(leave, ("1",))
    assert bare.run(os.getpid)
    with pytest.raises(JobEndedError, match="exit code 0 before its function had returned"):
        hvdrun.run(leave, num_proc=2, no_prefork=True)
    with pytest.raises(JobEndedError, match="exit code 0 before its function had returned"):
        hvdrun.run(leave, num_proc=1, min_num_proc=1, no_prefork=True)


def test_a_job_of_functions_has_an_outcome_and_so_have_its_error_and_a_cluster(tmp_path: Path) -> None:
    results = hvdrun.run(lambda: 1, num_proc=2, no_prefork=True, outcome=str(tmp_path / "outcome.json"))
    assert results == [1, 1]
    assert results.outcome is not None
    written = json.loads((tmp_path / "outcome.json").read_text())
    for key in ("job", "exit_code", "sizes", "workers"):
        assert results.outcome[key] == written[key]
    with pytest.raises(JobEndedError) as caught:
        hvdrun.run(lambda: os._exit(3), num_proc=1, no_prefork=True)
    assert caught.value.outcome is not None
    assert caught.value.outcome["first_cause"]["exit_code"] == 3
    with hvdrun.Cluster(num_proc=1, no_prefork=True) as cluster:
        cluster.run(lambda: 1)
        outcomes = [cluster.outcome]
    outcomes.append(cluster.outcome)
    assert [each and each["exit_code"] for each in outcomes] == [None, 0]


def test_a_cluster_ends_though_a_function_has_left_a_thread() -> None:
    def leave_a_thread() -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()

    before = find_descendants()
    with hvdrun.Cluster(num_proc=1, no_prefork=True, grace=1) as cluster:
        cluster.run(leave_a_thread)
    wait_until(lambda: find_descendants() <= before)


def test_ctrl_c_ends_the_job_and_the_program_lives_on(tmp_path: Path) -> None:
    def wait() -> None:
        (tmp_path / os.environ["HOROVOD_RANK"]).touch()
        time.sleep(600)

    def press() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    before = find_descendants()
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        hvdrun.run(wait, num_proc=2, no_prefork=True)
    pressing.join()
    wait_until(lambda: find_descendants() <= before)
    assert hvdrun.run(lambda: 1, num_proc=1, no_prefork=True) == [1]


WAITS_AT_ITS_START = """
import os, signal, time
os.close(os.open({path!r}, os.O_CREAT))
deadline = time.monotonic() + {seconds}
while signal.SIGINT not in signal.sigpending() and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def test_ctrl_c_while_the_launcher_is_imported_shows_no_traceback_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    program = WAITS_AT_ITS_START.format(path=str(begun), seconds=LIMIT_SECONDS)
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def press() -> None:
        wait_until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        hvdrun.run(print, num_proc=1)
    pressing.join()
    assert capfd.readouterr().err == ""


def test_a_closed_elastic_or_unstartable_cluster_raises_an_error() -> None:
    with pytest.raises(UsageError, match=r"run a function of an elastic job with hvdrun\.run"):
        hvdrun.Cluster(num_proc=2, min_num_proc=1)
    closed = hvdrun.Cluster(num_proc=1)
    closed.close()
    with pytest.raises(RuntimeError, match="is closed"):
        closed.run(print)
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid"):
        hvdrun.run(print, num_proc=1, hosts="no-such-host.invalid")
    refused = hvdrun.Cluster(num_proc=1, wdir="/no/such/folder")
    with pytest.raises(JobRefusedError, match="/no/such/folder") as caught:
        refused.run(print)
    assert caught.value.outcome is not None
    assert caught.value.outcome["first_cause"]["cause"] == "not started"
    assert refused.outcome == caught.value.outcome
