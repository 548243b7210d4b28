"""The bound of what travels inside a question."""

import pytest

from worker_runtime.core.questions import ALL_PAYLOADS_BYTES, PAYLOAD_BYTES, fits_payload


@pytest.mark.parametrize(("size", "bound"), [(1, PAYLOAD_BYTES), (8, PAYLOAD_BYTES), (16, ALL_PAYLOADS_BYTES // 16)])
def test_the_bound_is_that_of_one_payload_and_of_all_together(size: int, bound: int) -> None:
    assert fits_payload(size, bound)
    assert not fits_payload(size, bound + 1)
