"""What an agent writes into a worker's environment is what the worker reads."""

import ast
import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rendezvous import bootstrap
from rendezvous.bootstrap import (
    BACKEND,
    Backend,
    Bootstrap,
    count_restarts,
    forget_world,
    horovod_environment,
    read_backend,
    torch_environment,
    torch_job_environment,
    torch_worker_environment,
)
from rendezvous.core.model import Assignment, Endpoint, Round, Slot, Worker
from rendezvous.errors import BootstrapError, UnknownBackendError

GIVEN = Bootstrap("job", Path("/run/hvdrun-1/agent.sock"), Worker(Slot("a", 3), 2), "10.0.0.1", 120.0, 5.0)
ASSIGNMENT = Assignment(rank=5, size=8, local_rank=1, local_size=4, cross_rank=1, cross_size=2)

# An environment holds no NUL, and is bytes to the operating system.
values = st.binary(min_size=1).filter(lambda data: b"\0" not in data).map(os.fsdecode)


@given(
    st.builds(
        Bootstrap,
        job=values,
        socket=values.map(Path),
        worker=st.builds(Worker, st.builds(Slot, values, st.integers(min_value=0)), st.integers(min_value=1)),
        address=values,
        start_timeout_seconds=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        lease_seconds=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    )
)
@example(Bootstrap("job", Path("/s"), Worker(Slot("a", 0), 1), "10.0.0.1", 1.0, 1.0, server_timeout_seconds=3600.0))
@example(Bootstrap("job", Path("/s"), Worker(Slot("2001:db8::1", 0), 1), "2001:db8::1", 1.0, 1.0))
def test_a_worker_reads_what_its_agent_wrote(written: Bootstrap) -> None:
    environment = {os.fsencode(name): os.fsencode(value) for name, value in written.environment().items()}
    arrived = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    assert Bootstrap.read(arrived) == written


def test_a_script_that_no_agent_started_has_no_bootstrap() -> None:
    assert Bootstrap.read({}) is None
    assert Bootstrap.read({"PATH": "/bin", bootstrap.SLOT: "a:0"}) is None


@pytest.mark.parametrize("name", sorted(GIVEN.environment().keys() - {bootstrap.JOB}))
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    environment = GIVEN.environment()
    del environment[name]
    with pytest.raises(BootstrapError, match=f"{name}.*start the script through hvdrun"):
        Bootstrap.read(environment)


BAD_VALUES = {
    bootstrap.SLOT: ["a", ":0", "a:-1"],
    bootstrap.INCARNATION: ["first", "0", "-1"],
    bootstrap.START_TIMEOUT: ["soon", "nan", "inf", "0"],
    bootstrap.LEASE: ["long", "inf", "0"],
    bootstrap.SERVER_TIMEOUT: ["never", "inf", "-1"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD_VALUES for value in BAD_VALUES[name]])
def test_a_value_that_the_agent_cannot_have_written_is_shown(name: str, value: str) -> None:
    with pytest.raises(BootstrapError) as caught:
        Bootstrap.read({**GIVEN.environment(), name: value})
    assert value in str(caught.value)


def test_scripts_for_horovod_find_their_numbers() -> None:
    assert horovod_environment(ASSIGNMENT, "a", elastic=False) == {
        "HOROVOD_RANK": "5",
        "HOROVOD_SIZE": "8",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "4",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "a",
        "HOROVOD_ELASTIC": "0",
    }
    assert horovod_environment(ASSIGNMENT, "a", elastic=True)["HOROVOD_ELASTIC"] == "1"


def test_scripts_for_torchrun_find_their_world() -> None:
    environment = torch_environment(ASSIGNMENT, Round(2, 1, 2), Endpoint("10.0.0.1", 4711), "around/a/0.1/job~3")
    assert environment == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    assert torch_job_environment(3) == {"TORCHELASTIC_MAX_RESTARTS": "3"}
    assert int(torch_job_environment(None)["TORCHELASTIC_MAX_RESTARTS"]) > 1_000_000
    forget_world(environment)  # which the next generation makes wrong
    assert sorted(environment) == [
        "ROLE_NAME",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    ]


def test_no_variable_is_missing_that_torchrun_sets() -> None:
    torch = importlib.util.find_spec("torch")  # found, not imported
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed: .venv/bin/pip install -e '.[torch]'")
    source = Path(torch.origin).parent / "distributed" / "elastic" / "agent" / "server" / "local_elastic_agent.py"
    names: set[object] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign([ast.Name("worker_env")], ast.Dict(keys)):
                names |= {key.value for key in keys if isinstance(key, ast.Constant)}
            case ast.Subscript(ast.Name("worker_env"), ast.Constant(name)):
                names.add(name)
    ours = torch_environment(ASSIGNMENT, Round(0, 0, 1), Endpoint("a", 1), "job").keys() | torch_job_environment(0)
    # Workers have the first two from their environment as it is, and the last one is left to the maker of a group.
    assert names - {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"} == ours


@pytest.mark.parametrize("backend", Backend)
def test_a_worker_reads_the_backend_that_was_chosen(backend: Backend) -> None:
    assert read_backend({BACKEND: backend.value}) is backend


@pytest.mark.parametrize("environment", [{}, {BACKEND: ""}])
def test_a_backend_need_not_be_chosen(environment: dict[str, str]) -> None:
    assert read_backend(environment) is None


def test_an_unknown_backend_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownBackendError, match=r"^HVD_BACKEND is 'UCC'; it takes gloo, nccl or ucc$"):
        read_backend({BACKEND: "UCC"})


@pytest.mark.parametrize(
    ("environment", "restarts"),
    [
        (torch_environment(ASSIGNMENT, Round(3, 0, 1), Endpoint("10.0.0.1", 4711), "job"), 3),
        (torch_worker_environment(3, "job"), 0),  # one that was started alone
        ({}, 0),
        ({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "many"}, 0),
    ],
)
def test_a_worker_knows_how_many_times_all_were_started_again(environment: dict[str, str], restarts: int) -> None:
    assert count_restarts(environment) == restarts
