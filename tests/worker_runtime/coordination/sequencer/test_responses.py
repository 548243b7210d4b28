"""Responses as frames."""

import pytest

from tests.worker_runtime.coordination.sequencer.ends import Ends
from worker_runtime.coordination.ordering.requests import Failure, Refusal, Response, Stopping
from worker_runtime.coordination.sequencer.member import Member, make_frames
from worker_runtime.coordination.wire import Frame, encode_index, encode_numbered

WHY, OTHER_WHY = encode_numbered(7, "why"), encode_numbered(9, "why")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            Refusal(0, "x", (0, 2), "why"),
            [(0, Frame.REFUSAL, WHY), (2, Frame.REFUSAL, OTHER_WHY)],
        ),
        (Refusal(0, "x", (0, 2), "why", is_deadlock=True), [(0, Frame.DEADLOCK, WHY), (2, Frame.DEADLOCK, OTHER_WHY)]),
        (Stopping(3), [(0, Frame.STOPPING, encode_index(3)), (2, Frame.STOPPING, encode_index(3))]),
        (Failure("lost"), [(rank, Frame.FAILURE, b"lost") for rank in range(3)]),
    ],
)
def test_each_response_is_sent_to_the_ranks_that_it_concerns(
    response: Response, expected: list[object], ends: Ends
) -> None:
    members = {rank: Member(rank, ends.connection, has_left=rank == 1) for rank in range(3)}
    asked = [(0, 7, b"", 0.0), (2, 9, b"", 0.0)] if isinstance(response, Refusal) else []
    assert list(make_frames(response, asked, members)) == expected
