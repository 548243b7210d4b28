"""What the calls of workers and agents have in common."""

from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from grpc import StatusCode as Code

from rendezvous.client import Pauses
from rendezvous.errors import CallRefusedError
from tests.rendezvous.stage import A0, in_clean_loop, in_thread, open_worker, serve_method


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        *((code, "enough") for code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED)),
        *((code, "not in the mood") for code in (Code.INTERNAL, Code.RESOURCE_EXHAUSTED)),
        *((code, "not in the mood") for code in (Code.PERMISSION_DENIED, Code.UNIMPLEMENTED)),
    ],
)
@in_clean_loop
async def test_only_network_errors_are_retried(path: Path, code: Code, reported: str) -> None:
    answers = [(code, "not in the mood"), (Code.FAILED_PRECONDITION, "enough")]

    async def answer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(*answers.pop(0))

    server = await serve_method(path, "Join", grpc.unary_unary_rpc_method_handler(answer))
    async with open_worker(path, A0) as client:
        with pytest.raises(CallRefusedError, match=f"refused a call: {reported}"):
            await in_thread(lambda: client.join(0))
    await server.stop(None)


def test_pauses_grow_where_a_peer_may_be_away_for_long() -> None:
    for is_patient, longest in ((True, 1.0), (False, 0.1)):
        pauses = Pauses(is_patient=is_patient)
        tries = [pauses.next() for _ in range(20)]
        assert (tries[0], max(tries), tries) == (0.1, longest, sorted(tries))
        pauses.reset()
        assert pauses.next() == 0.1
