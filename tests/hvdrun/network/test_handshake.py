"""Only who is asked for can answer, and only who knows the token can ask."""

from dataclasses import replace

import pytest

from hvdrun.network.handshake import ANSWER_BYTES, QUESTION_BYTES, Identity
from rendezvous.core.model import Endpoint

ASKED = Identity(b"token", "a", Endpoint("10.0.0.1", 4711))
OTHERS = [
    replace(ASKED, token=b"another"),
    replace(ASKED, host="b"),
    replace(ASKED, endpoint=Endpoint("10.0.0.2", 4711)),
    replace(ASKED, endpoint=Endpoint("10.0.0.1", 4712)),
    replace(ASKED, host="a\x0010.0.0.1", endpoint=Endpoint("", 4711)),
]


@pytest.mark.parametrize("host", ["a", "caf\udce9"])
def test_the_host_that_is_asked_for_answers(host: str) -> None:
    asked = replace(ASKED, host=host)
    question = asked.ask()
    answer = asked.answer(question)
    assert answer is not None
    assert (len(question), len(answer)) == (QUESTION_BYTES, ANSWER_BYTES)
    assert asked.has_answered(question, answer)


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_nobody_else_answers_or_is_believed(other: Identity) -> None:
    question = ASKED.ask()
    assert other.answer(question) is None
    assert not ASKED.has_answered(question, other._sign(b"answer", question[:16]))


def test_an_answer_is_good_for_its_own_question_only() -> None:
    answer = ASKED.answer(ASKED.ask())
    assert answer is not None
    assert not ASKED.has_answered(ASKED.ask(), answer)


def test_a_question_sent_back_is_no_answer() -> None:
    question = ASKED.ask()
    assert not ASKED.has_answered(question, question[:ANSWER_BYTES])
    assert not ASKED.has_answered(question, question[-ANSWER_BYTES:])


@pytest.mark.parametrize("length", [0, 1, 16, 47, 49, 4096])
def test_what_is_no_question_has_no_answer(length: int) -> None:
    assert ASKED.answer(b"\x00" * length) is None


@pytest.mark.parametrize("length", [0, 1, 31, 33])
def test_what_has_not_the_length_of_an_answer_is_none(length: int) -> None:
    assert not ASKED.has_answered(ASKED.ask(), b"\x00" * length)
