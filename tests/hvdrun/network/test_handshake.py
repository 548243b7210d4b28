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


def test_who_is_asked_for_answers() -> None:
    question = ASKED.ask()
    answer = ASKED.answer(question)
    assert answer is not None
    assert (len(question), len(answer)) == (QUESTION_BYTES, ANSWER_BYTES)
    assert ASKED.has_answered(question, answer)


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_nobody_else_answers(other: Identity) -> None:
    assert other.answer(ASKED.ask()) is None


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_the_answer_of_another_is_none(other: Identity) -> None:
    question = ASKED.ask()
    answer = other._sign(b"answer", question[:16])
    assert not ASKED.has_answered(question, answer)


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


def test_a_host_whose_name_is_no_utf8_can_take_part() -> None:
    odd = replace(ASKED, host="caf\udce9")
    question = odd.ask()
    answer = odd.answer(question)
    assert answer is not None
    assert odd.has_answered(question, answer)
