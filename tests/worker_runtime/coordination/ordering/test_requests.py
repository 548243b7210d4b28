"""Requests and their notes, and the bound of what travels inside one."""

import pytest

from worker_runtime.coordination.ordering.requests import (
    ALL_PAYLOADS_BYTES,
    PAYLOAD_BYTES,
    Kind,
    Request,
    Signature,
    fits_payload,
)


@pytest.mark.parametrize(("size", "bound"), [(1, PAYLOAD_BYTES), (8, PAYLOAD_BYTES), (16, ALL_PAYLOADS_BYTES // 16)])
def test_the_bound_is_that_of_one_payload_and_of_all_together(size: int, bound: int) -> None:
    assert fits_payload(size, bound)
    assert not fits_payload(size, bound + 1)


def test_a_note_is_added_to_a_copy() -> None:
    plain = Request(0, "allreduce.x", Signature(Kind.ALLREDUCE, dtypes=("float32",)))
    noted = plain.add_note("of two")
    assert noted == Request(0, "allreduce.x", Signature(Kind.ALLREDUCE, dtypes=("float32",), note="of two"))
    assert not plain.signature.note
