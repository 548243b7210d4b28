"""Operations that are spoken of."""

import pytest

from worker_runtime.mentions import Mention
from worker_runtime.wire import ProtocolError


@pytest.mark.parametrize("mention", [Mention(0, "allreduce.x", ""), Mention(65535, "\u00e9", "ValueError: \u00e9")])
def test_a_mention_travels(mention: Mention) -> None:
    assert Mention.decode(memoryview(mention.encode())) == mention


@pytest.mark.parametrize("name", [70_000 * "x", "\ud800"])
def test_a_name_that_no_operation_can_have_cannot_be_sent(name: str) -> None:
    with pytest.raises(ValueError, match=r"too long|surrogates"):
        Mention(0, name, "").encode()


def test_a_text_may_be_whatever_an_error_says() -> None:
    assert Mention.decode(memoryview(Mention(0, "x", "\ud800").encode())).text == "\\ud800"


def test_a_text_may_be_cut_off_in_the_middle_of_a_character() -> None:
    assert Mention.decode(memoryview(Mention(1, "x", "ab\u00e9").encode()[:-1])) == (1, "x", "ab\ufffd")


@pytest.mark.parametrize("body", [b"", b"\0\0\2", b"\0\0\2\0x", b"\0\0\1\0\xff"])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="mention of an operation"):
        Mention.decode(memoryview(body))
