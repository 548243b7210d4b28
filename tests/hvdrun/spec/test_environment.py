"""Which variables workers get, and how these differ from hvdrun's own."""

import pytest

from hvdrun.errors import BadValueError, VariableNotSetError
from hvdrun.spec.environment import choose_environment, choose_forwarded, merge_environments

OWN = {b"HOME": b"/home/user", b"LATIN": b"\xe9", b"HVD_JOB": b"around", b"HVD_SLOT": b"a:0"}


DEFAULTS = {b"PYTHONFAULTHANDLER": b"1", b"PYTHONUNBUFFERED": b"1"}
ONE_THREAD = {b"OMP_NUM_THREADS": b"1"}
CHOSEN = {
    b"OMP_NUM_THREADS": b"8",
    b"HVD_CHECK_REPLICAS": b"2",
    b"HVD_CHECK_NAN": b"1",
    b"PYTHONFAULTHANDLER": b"",
    b"PYTHONUNBUFFERED": b"",
}
LEADS = {b"PATH": b"/bin", b"PYTHONPATH": b"/src", b"CONDA_PREFIX": b"/conda"}


@pytest.mark.parametrize(
    ("own", "neighbours", "remote", "environment"),
    [
        (OWN, 1, False, {b"HOME": b"/home/user", b"LATIN": b"\xe9", **DEFAULTS}),
        ({}, 1, False, DEFAULTS),
        ({}, 2, False, {**DEFAULTS, **ONE_THREAD}),
        (CHOSEN, 2, False, CHOSEN),
        (CHOSEN, 2, True, CHOSEN),
        ({**OWN, **LEADS, b"API_KEY": b"hunter2"}, 2, True, {**LEADS, **DEFAULTS, **ONE_THREAD}),
    ],
    ids=["a job around", "alone", "neighbours", "set by the user", "set by the user, remote", "remote"],
)
def test_workers_have_hvdruns_variables_and_the_defaults(
    own: dict[bytes, bytes], neighbours: int, environment: dict[bytes, bytes], *, remote: bool
) -> None:
    assert choose_environment(own, neighbours, remote=remote) == environment


def test_a_host_that_is_prepared_by_a_prefix_finds_its_own_programs() -> None:
    own = {b"PATH": b"/bin", b"LD_LIBRARY_PATH": b"/lib", b"OMP_NUM_THREADS": b"2"}
    environment = choose_environment(own, 2, remote=True, prefixed=True, forwarded={b"PYTHONPATH": b"/src"})
    assert environment == {b"PYTHONPATH": b"/src", b"OMP_NUM_THREADS": b"2", **DEFAULTS}


def test_chosen_variables_override_the_environment_of_a_login() -> None:
    login = {b"HOME": b"/home/there", b"PATH": b"/usr/bin", b"HVD_JOB": b"around"}
    chosen = {b"PATH": b"/here/bin", b"RANK": b"0"}
    assert merge_environments(login, chosen) == {b"HOME": b"/home/there", b"PATH": b"/here/bin", b"RANK": b"0"}


@pytest.mark.parametrize("remote", [False, True])
def test_forwarded_variables_override_others_on_every_host(*, remote: bool) -> None:
    own = {b"PATH": b"/bin", b"OMP_NUM_THREADS": b"8"}
    forwarded = {b"PATH": b"/other", b"OMP_NUM_THREADS": b"2", b"NCCL_DEBUG": b"INFO"}
    environment = choose_environment(own, 2, remote=remote, forwarded=forwarded)
    assert environment == {**forwarded, **DEFAULTS}


SET = {b"NCCL_DEBUG": b"INFO", b"NCCL_ALGO": b"Ring", b"HVD_JOB": b"around", b"LATIN": b"\xe9", b"EMPTY": b""}


@pytest.mark.parametrize(
    ("requests", "chosen"),
    [
        ([], {}),
        (["NCCL_DEBUG"], {b"NCCL_DEBUG": b"INFO"}),
        (["LATIN", "EMPTY"], {b"LATIN": b"\xe9", b"EMPTY": b""}),
        (["NCCL_DEBUG=WARN"], {b"NCCL_DEBUG": b"WARN"}),
        (["NEW=a=b c"], {b"NEW": b"a=b c"}),
        (["NEW="], {b"NEW": b""}),
        (["GLOB=*"], {b"GLOB": b"*"}),
        (["NCCL_*"], {b"NCCL_DEBUG": b"INFO", b"NCCL_ALGO": b"Ring"}),
        (["NCCL_[AB]*", "N?W*"], {b"NCCL_ALGO": b"Ring"}),
        (["nccl_*"], {}),
        (["*"], {name: value for name, value in SET.items() if name != b"HVD_JOB"}),
        (["NCCL_*", "NCCL_DEBUG=WARN"], {b"NCCL_DEBUG": b"WARN", b"NCCL_ALGO": b"Ring"}),
        (["A=1", "A=2"], {b"A": b"2"}),
        (["B=\udcff"], {b"B": b"\xff"}),
    ],
)
def test_requested_variables_are_forwarded(requests: list[str], chosen: dict[bytes, bytes]) -> None:
    assert choose_forwarded(requests, SET) == chosen


def test_a_variable_that_is_not_set_is_refused_with_a_remedy() -> None:
    with pytest.raises(VariableNotSetError, match=r"'NCCL_DEBG'.* is not set here: .* -x NAME=VALUE\.$"):
        choose_forwarded(["NCCL_DEBG"], SET)


def test_a_variable_that_is_always_forwarded_need_not_be_set() -> None:
    assert choose_forwarded(["PATH", "LD_LIBRARY_PATH"], {b"PATH": b"/bin"}) == {b"PATH": b"/bin"}


@pytest.mark.parametrize("request_", ["", "=hunter2", "A\0B=hunter2", "A B=hunter2", " A"])
def test_a_wrong_variable_is_refused_without_its_value(request_: str) -> None:
    with pytest.raises(
        BadValueError, match=r"^-x takes a variable whose name is not empty and has no spaces"
    ) as caught:
        choose_forwarded([request_], SET)
    assert "hunter2" not in str(caught.value)
