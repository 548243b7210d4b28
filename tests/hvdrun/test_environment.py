"""Which variables workers get, and how these differ from hvdrun's own."""

from hypothesis import given
from hypothesis import strategies as st

from hvdrun.environment import choose_environment, find_added, find_removed

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
