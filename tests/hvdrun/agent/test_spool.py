"""What an agent keeps for its launcher: nothing is lost, and nothing is sent twice, up to a limit."""

import random
from pathlib import Path

import pytest

from hvdrun.agent.spool import Spool
from rendezvous.wire import codec
from rendezvous.wire.orders import Alert


def fill(spool: Spool, count: int, size: int = 100) -> list[bytes]:
    messages = [
        str(number).encode().ljust(size, b".") for number in range(spool.next_number, spool.next_number + count)
    ]
    for message in messages:
        spool.add(message)
    return messages


def empty(spool: Spool) -> list[bytes]:
    """All that is sent, each message with its number."""
    sent: list[bytes] = []
    while spool:
        first, messages = spool.peek()
        assert messages
        spool.drop(first + len(messages) - 1)
        sent += messages
    return sent


def test_messages_come_in_order_over_memory_and_files_and_leave_none_behind(tmp_path: Path) -> None:
    spool = Spool(tmp_path, part_bytes=1000)
    messages = fill(spool, 100)
    files = list(tmp_path.iterdir())
    assert len(files) > 5
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert empty(spool) == messages
    assert list(tmp_path.iterdir()) == []


def test_messages_without_an_acknowledgement_are_sent_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    messages = fill(spool, 5)
    assert spool.peek() == (1, messages)
    spool.drop(2)
    assert spool.peek() == (3, messages[2:])
    spool.drop(1)
    assert spool.peek() == (3, messages[2:])


def test_random_orders_of_filling_and_sending_keep_every_message(tmp_path: Path) -> None:
    chance = random.Random(1)  # noqa: S311 - of a test
    spool = Spool(tmp_path, part_bytes=500)
    messages: list[bytes] = []
    sent: list[bytes] = []
    for _ in range(500):
        messages += fill(spool, chance.randrange(8), chance.randrange(1, 300))
        if spool and chance.random() < 0.7:
            first, found = spool.peek()
            taken = chance.randrange(len(found) + 1)
            spool.drop(first + taken - 1)
            sent += found[:taken]
    assert [*sent, *empty(spool)] == messages


def test_the_oldest_are_dropped_beyond_the_limit_and_a_line_says_how_much(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=3000, part_bytes=1000)
    messages = fill(spool, 100)
    line, *kept = empty(spool)
    said = codec.decode_agent_message(line)
    assert isinstance(said, Alert)
    lost = int(said.text.split()[0])
    assert kept == messages[lost // 100 :]
    assert 3000 <= len(b"".join(kept)) <= 4100


def test_a_full_disk_costs_the_oldest_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    spool = Spool(tmp_path, part_bytes=1000)
    messages = fill(spool, 100)
    line, *kept = empty(spool)
    assert isinstance(codec.decode_agent_message(line), Alert)
    assert kept == messages[-len(kept) :]


def test_a_line_reports_a_file_that_has_vanished(tmp_path: Path) -> None:
    spool = Spool(tmp_path, part_bytes=1000)
    fill(spool, 50)
    for file in tmp_path.iterdir():
        file.unlink()
    assert sum(b"bytes of output were dropped" in message for message in empty(spool)) == 1
