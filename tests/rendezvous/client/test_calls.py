"""What the calls of workers and agents have in common."""

from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from rendezvous.errors import CallRefusedError
from tests.rendezvous.stage import A0, in_clean_loop, in_thread, open_worker, serve_method


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False),
        (grpc.StatusCode.CANCELLED, False),
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (grpc.StatusCode.PERMISSION_DENIED, True),
        (grpc.StatusCode.UNIMPLEMENTED, True),
    ],
)
@in_clean_loop
async def test_only_a_broken_way_is_tried_again(path: Path, code: grpc.StatusCode, *, is_final: bool) -> None:
    answers = [(code, "not in the mood"), (grpc.StatusCode.FAILED_PRECONDITION, "enough")]

    async def answer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(*answers.pop(0))

    server = await serve_method(path, "Join", grpc.unary_unary_rpc_method_handler(answer))
    async with open_worker(path, A0) as client:
        with pytest.raises(CallRefusedError, match="not in the mood" if is_final else "enough"):
            await in_thread(lambda: client.join(0))
    await server.stop(None)
