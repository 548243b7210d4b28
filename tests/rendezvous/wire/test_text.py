"""Sentences for people arrive, whatever they speak of."""

from rendezvous.wire.text import encode_text
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE


def test_a_sentence_stays_as_it_is_and_what_is_no_utf8_becomes_readable() -> None:
    assert [encode_text(text) for text in ("plain", "schön", None, UNDECODABLE)] == ["plain", "schön", "", READABLE]
