"""Which variables workers get, and how these differ from hvdrun's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.environment import choose_environment, find_added, find_removed, lay_over

OWN = {b"HOME": b"/home/user", b"LATIN": b"\xe9", b"HVD_JOB": b"around", b"HVD_SLOT": b"a:0"}


def test_workers_have_hvdruns_variables_without_those_of_a_job_around() -> None:
    environment = choose_environment(OWN, neighbours=1)
    assert environment == {b"HOME": b"/home/user", b"LATIN": b"\xe9", b"PYTHONUNBUFFERED": b"1"}


def test_workers_that_share_a_host_use_one_thread_each() -> None:
    assert choose_environment({}, neighbours=2)[b"OMP_NUM_THREADS"] == b"1"
    assert b"OMP_NUM_THREADS" not in choose_environment({}, neighbours=1)


def test_what_the_user_has_set_stays() -> None:
    own = {b"OMP_NUM_THREADS": b"8", b"PYTHONUNBUFFERED": b""}
    assert choose_environment(own, neighbours=2) == own


def test_another_host_gets_only_what_leads_to_programs_and_the_defaults() -> None:
    own = OWN | {b"PATH": b"/bin", b"PYTHONPATH": b"/src", b"CONDA_PREFIX": b"/conda", b"API_KEY": b"hunter2"}
    assert choose_environment(own, 2, remote=True) == {
        b"PATH": b"/bin",
        b"PYTHONPATH": b"/src",
        b"CONDA_PREFIX": b"/conda",
        b"PYTHONUNBUFFERED": b"1",
        b"OMP_NUM_THREADS": b"1",
    }


def test_a_host_that_is_prepared_by_a_prefix_finds_its_own_programs() -> None:
    own = {b"PATH": b"/bin", b"LD_LIBRARY_PATH": b"/lib", b"OMP_NUM_THREADS": b"2"}
    environment = choose_environment(own, 2, remote=True, prefixed=True, forwarded={b"PYTHONPATH": b"/src"})
    assert environment == {b"PYTHONPATH": b"/src", b"OMP_NUM_THREADS": b"2", b"PYTHONUNBUFFERED": b"1"}


def test_what_is_chosen_lies_over_the_environment_of_a_login() -> None:
    login = {b"HOME": b"/home/there", b"PATH": b"/usr/bin", b"HVD_JOB": b"around"}
    chosen = {b"PATH": b"/here/bin", b"RANK": b"0"}
    assert lay_over(login, chosen) == {b"HOME": b"/home/there", b"PATH": b"/here/bin", b"RANK": b"0"}


def test_what_the_user_has_set_in_the_place_of_a_default_holds_on_all_hosts() -> None:
    own = {b"OMP_NUM_THREADS": b"8", b"PYTHONUNBUFFERED": b""}
    assert choose_environment(own, 2, remote=True) == own


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_forwarded_wins_on_every_host(*, remote: bool) -> None:
    own = {b"PATH": b"/bin", b"OMP_NUM_THREADS": b"8"}
    forwarded = {b"PATH": b"/other", b"OMP_NUM_THREADS": b"2", b"NCCL_DEBUG": b"INFO"}
    environment = choose_environment(own, 2, remote=remote, forwarded=forwarded)
    assert environment == {**forwarded, b"PYTHONUNBUFFERED": b"1"}


def test_the_difference_is_what_was_added_changed_and_taken_away() -> None:
    own = {b"SAME": b"1", b"OTHER": b"1", b"GONE": b"1", b"AWAY": b"1"}
    chosen = {b"SAME": b"1", b"OTHER": b"2", b"NEW": b"1"}
    assert find_added(own, chosen) == {b"OTHER": b"2", b"NEW": b"1"}
    assert find_removed(own, chosen) == (b"AWAY", b"GONE")


variables = st.dictionaries(st.binary(max_size=2), st.binary(max_size=2))


@given(variables, variables)
def test_the_difference_leads_from_one_to_the_other(own: dict[bytes, bytes], chosen: dict[bytes, bytes]) -> None:
    kept = {name: value for name, value in own.items() if name not in find_removed(own, chosen)}
    assert kept | find_added(own, chosen) == chosen
