"""`horovod.run()` says and raises what Horovod does; the job itself is `hvdrun.run()`'s."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from hvdrun.cluster import horovod
from hvdrun.cluster.errors import JobEndedError
from hvdrun.cluster.horovod import run
from hvdrun.cluster.keywords import Request

# Of Horovod 0.28.1.
ORDER = (
    "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
    "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo "
    "use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"
)
asked: list[list[str]] = []


def play(outcome: Callable[[], Any]) -> Callable[..., Any]:
    """What stands for a job."""

    def run_once(request: Request, *_: object) -> object:
        asked.append(request.words)
        return outcome()

    return run_once


@pytest.fixture(autouse=True)
def _job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked.clear()
    monkeypatch.setattr(horovod, "run_once", play(lambda: [10, 11, 12]))


def test_the_parameters_are_horovods_in_its_order() -> None:
    assert list(inspect.signature(run).parameters) == ORDER.split()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "-np 1"),
        ({"num_proc": 2, "start_timeout": 30, "verbose": True}, "-np 2 --start-timeout 30 -v"),
        (
            {"hosts": "a:2", "num_proc": 2, "ssh_port": 22, "disable_cache": True, "use_gloo": True},
            "-np 2 -H a:2 -p 22",
        ),
        (
            {"num_proc": 2, "min_num_proc": 1, "max_num_proc": 2, "cooldown_range": [1, 2]},
            "-np 2 --min-np 1 --max-np 2",
        ),
        ({"network_interfaces": ["eth0", "eth1"]}, "eth0,eth1"),
    ],
)
def test_the_parameters_mean_options(given: dict[str, Any], words: str) -> None:
    run(print, **given)
    assert set(words.split()) <= set(asked[0])


def test_the_executable_runs_the_workers() -> None:
    run(print, executable="/opt/python")
    assert asked[0][-3:] == ["/opt/python", "-m", "worker_runtime.tasks"]


def test_an_elastic_job_returns_as_many_results_as_it_needs_workers() -> None:
    assert run(print, num_proc=3, hosts="localhost:3", min_num_proc=2) == [10, 11]
    assert run(print, num_proc=3) == [10, 11, 12]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": "a:1", "hostfile": "h"}, "hosts and hostfile"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi"),
        ({"num_proc": 3, "hosts": "localhost:2"}, "3 workers do not fit into the 2 slots"),
    ],
)
def test_contradictory_arguments_are_a_value_error(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run(print, **given)
    assert asked == []


def test_old_names_and_mpi_options_cause_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc instead"):
        run(print, np=2)
    assert asked[0][:2] == ["-np", "2"]
    with pytest.warns(UserWarning, match="use_mpi and mpi_args have no effect"):
        run(print, use_mpi=True)
    with pytest.raises(ValueError, match="the same"), pytest.warns(DeprecationWarning, match="np"):
        run(print, np=2, num_proc=2)


@pytest.mark.parametrize("error", [KeyError("a"), JobEndedError("rank 1 was killed", 1, -9)])
def test_a_failure_is_a_runtime_error_with_the_worker_s_own_as_cause(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> NoReturn:
        raise error

    monkeypatch.setattr(horovod, "run_once", play(fail))
    with pytest.raises(
        RuntimeError, match="Horovod detected that one or more processes exited with non-zero"
    ) as caught:
        run(print)
    assert caught.value.__cause__ is error
