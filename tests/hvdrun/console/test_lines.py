"""Streams cut into lines: nothing lost, and the chunks in which the bytes came make no difference."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.console.lines import LineSplitter

# Many line ends, and parts of characters: mistakes are likely there.
streams = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"\xff\xc3", b"\xe2\x82\xac", b"\x0b\x85"])
).map(b"".join)


def split(chunks: list[bytes], max_line_bytes: int = 1000) -> list[bytes]:
    splitter = LineSplitter(max_line_bytes)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def chop(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a\n", b"b\n"]),
        (b"\n\na", [b"\n", b"\n", b"a\n"]),
        (b"a\r\nb", [b"a\r\n", b"b\n"]),
        (b"\r 10%\r 20%\r\n", [b"\r", b" 10%\r", b" 20%\r\n"]),
        (b"done\r", [b"done\r\n"]),
        (b"\r\r\n", [b"\r", b"\r\n"]),
        (b"a\x0bb\x0cc\x1cd\x85e\n", [b"a\x0bb\x0cc\x1cd\x85e\n"]),
        (b"\xff\x00\xc3\n", [b"\xff\x00\xc3\n"]),
    ],
)
def test_lines_end_with_newline_or_carriage_return(data: bytes, lines: list[bytes]) -> None:
    assert split([data]) == lines


def test_a_line_is_given_as_soon_as_it_is_complete() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb") == [b"a\n"]
    assert splitter.feed(b"c") == []
    assert splitter.feed(b"\nd\r") == [b"bc\n"]
    assert splitter.feed(b"e\r") == [b"d\r"]
    assert splitter.feed(b"\n") == [b"e\r\n"]
    assert splitter.finish() == []


def test_a_line_that_is_too_long_is_cut() -> None:
    assert split([b"abcdefgh\nx"], max_line_bytes=3) == [b"abc\n", b"def\n", b"gh\n", b"x\n"]
    assert split([b"abc\r\nabc\r\rabc"], max_line_bytes=3) == [b"abc\r\n", b"abc\r", b"\r", b"abc\n"]


def test_a_stream_without_line_ends_is_not_kept_in_memory() -> None:
    splitter = LineSplitter(max_line_bytes=10)
    for _ in range(1000):
        splitter.feed(b"x" * 7)
        assert sum(map(len, splitter._parts)) <= 10


@given(streams, st.lists(st.integers(0, 100)), st.integers(1, 5) | st.just(1000))
def test_chunks_make_no_difference(data: bytes, places: list[int], max_line_bytes: int) -> None:
    assert split(chop(data, places), max_line_bytes) == split([data], max_line_bytes)


@given(streams)
def test_no_byte_is_lost_and_only_a_last_newline_is_added(data: bytes) -> None:
    joined = b"".join(split([data]))
    assert joined == data if data.endswith(b"\n") or not data else joined == data + b"\n"


@given(streams, st.integers(1, 5))
def test_cut_lines_lose_no_text_and_are_never_too_long(data: bytes, max_line_bytes: int) -> None:
    lines = split([data], max_line_bytes)
    assert b"".join(lines).replace(b"\n", b"") == data.replace(b"\n", b"")
    assert all(len(line.rstrip(b"\r\n")) <= max_line_bytes for line in lines)
