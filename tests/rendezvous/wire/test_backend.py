"""The backends' names, as they travel to workers and to whoever is asked for them."""

import pytest

from rendezvous.bootstrap import BACKEND
from rendezvous.errors import UnknownBackendError
from rendezvous.wire.backend import Backend, encode_answer, read_answer, read_backend


@pytest.mark.parametrize("backend", Backend)
def test_a_worker_reads_what_was_asked_for(backend: Backend) -> None:
    assert read_backend({BACKEND: backend.value}) is backend


@pytest.mark.parametrize("environment", [{}, {BACKEND: ""}])
def test_nothing_may_be_asked_for(environment: dict[str, str]) -> None:
    assert read_backend(environment) is None


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownBackendError, match=r"^HVD_BACKEND is 'UCC'; it takes gloo, nccl or ucc$"):
        read_backend({BACKEND: "UCC"})


@pytest.mark.parametrize("objection", ["", 'it has no "ucc"; ä {"objection": 1}', "two\nlines"])
@pytest.mark.parametrize("before", [b"", b"an import says\n", b"and more without an end "])
def test_an_answer_is_found_behind_whatever_was_printed(objection: str, before: bytes) -> None:
    assert read_answer(before + encode_answer(objection)) == objection


@pytest.mark.parametrize("output", [b"", b"hello\n", b'{"objection": \n', b'{"objection": x}', b'{"port": 3}\n'])
def test_what_is_no_answer_is_none(output: bytes) -> None:
    assert read_answer(output) is None
