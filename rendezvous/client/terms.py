"""The terms of the server: a server that was started again has a higher one, and an agent obeys no lower one.

The server tells its term in the trailing metadata of each answer, and at the beginning of a stream. An answer without
it comes from gRPC itself, as from a server that just starts or ends.
"""

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import grpc

from rendezvous.wire.orders import TERM

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
AnswerT = TypeVar("AnswerT")

# What our server answers with its own words. gRPC answers otherwise, too, as without memory.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)


class Call(Protocol[AnswerT_co]):
    """A call that is answered once."""

    def __await__(self) -> Generator[Any, Any, AnswerT_co]:
        """Wait for the answer."""

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What the server has sent after the answer."""


class Terms:
    """Knows the latest term, and which errors are final.

    Args:
        is_patient: the server may be started again: only a refusal of its own is final.

    latest: the highest term that was seen.
    """

    def __init__(self, *, is_patient: bool = False) -> None:
        self.latest = 0
        self._is_patient = is_patient

    async def answer(self, call: Call[AnswerT]) -> AnswerT:
        """The answer of a call.

        Raises:
            grpc.aio.AioRpcError: it has failed; UNAVAILABLE where a server of a former term has answered.
        """
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self.judge(error) from None
        self.note(await call.trailing_metadata())
        return response

    def note(self, metadata: grpc.aio.Metadata | None) -> int:
        """Note the term in an answer, and return it; 0 where there is none.

        Raises:
            grpc.aio.AioRpcError: UNAVAILABLE, since it is a former one.
        """
        term = _read_term(metadata)
        if 0 < term < self.latest:
            raise _unavailable(f"a former server answers, of term {term} after {self.latest}")
        self.latest = max(self.latest, term)
        return term

    def judge(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The error that the caller gets for this one: UNAVAILABLE where a later server may answer otherwise."""
        try:
            term = self.note(error.trailing_metadata())
        except grpc.aio.AioRpcError as former:
            return former
        if self._is_patient and not (term and error.code() in _REFUSALS):
            return _unavailable(error.details() or error.code().name)
        return error


def _read_term(metadata: grpc.aio.Metadata | None) -> int:
    text = "" if metadata is None else metadata.get(TERM, "")
    return int(text) if str(text).isdecimal() else 0


def _unavailable(details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
