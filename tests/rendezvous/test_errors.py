"""Each error says in one sentence what happened, and where."""

import pytest

from rendezvous.errors import (
    BootstrapError,
    CallRefusedError,
    JoinRefusedError,
    ListenError,
    RendezvousError,
    SequencerStartError,
    UnreachableError,
    WireError,
)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (BootstrapError(KeyError("HVD_SLOT")), ("HVD_SLOT", "start the script through hvdrun")),
        (JoinRefusedError("rank 1 has ended"), ("rank 1 has ended",)),
        (UnreachableError("the agent", "/run/x", "no answer"), ("the agent", "/run/x", "no answer")),
        (ListenError("10.0.0.1", "no such address"), ("cannot listen", "10.0.0.1", "no such address")),
        (SequencerStartError("no NumPy"), ("no sequencer", "orders the workers' collectives", "no NumPy")),
        (WireError("a frame of 9 bytes"), ("hvdrun's protocol", "a frame of 9 bytes")),
        (CallRefusedError("a:1", "not yours"), ("a:1", "refused", "not yours")),
    ],
)
def test_an_error_says_in_one_sentence_what_happened_and_where(error: RendezvousError, parts: tuple[str, ...]) -> None:
    assert isinstance(error, RendezvousError)
    assert "\n" not in str(error)
    assert [part for part in parts if part not in str(error)] == []


def test_what_a_caller_may_ask_of_an_error_is_a_field() -> None:
    assert JoinRefusedError("it is over").reason == "it is over"
    assert UnreachableError("the agent", "/run/x", "no answer").what == "the agent"
    assert UnreachableError("the agent", "/run/x", "no answer").where == "/run/x"
    assert SequencerStartError("no NumPy").reason == "no NumPy"
    assert ListenError("10.0.0.1", "no such address").where == "10.0.0.1"
