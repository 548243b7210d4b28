"""An agent's orders and its folder; what it does for a whole job is in tests/system."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.agent.agent import Orders, choose_folder
from rendezvous import wire
from rendezvous.core.effects import Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.errors import WireError
from rendezvous.orders import Order, Release

ORDERS: tuple[Order, ...] = (Terminate(Worker(Slot("a", 0), 1), 5.0, "the test wants it"), Release())


def read_orders(*chunks: bytes) -> list[Order | None]:
    """The orders in these chunks, up to their end."""

    async def read() -> list[Order | None]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        orders = Orders(reader)
        found = [await orders.next()]
        while found[-1] is not None:
            found.append(await orders.next())
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_orders_come_one_by_one_however_they_were_cut(size: int) -> None:
    data = b"".join(map(wire.encode_order, ORDERS))
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert read_orders(*chunks) == [*ORDERS, None]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in whose path there is room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder:
        yield Path(folder)


def test_a_last_order_that_is_not_complete_is_none() -> None:
    assert read_orders(wire.encode_order(ORDERS[0])[:-1]) == [None]


@pytest.mark.parametrize("data", [b"\xff" * 8, wire.frame(b"\xff\xff"), wire.frame(b"")])
def test_bytes_that_are_no_orders_are_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        read_orders(data)


def test_a_folder_has_a_name_of_its_own_and_is_not_made_yet(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    folders = {choose_folder({}) for _ in range(10)}
    assert len(folders) == 10
    assert all(folder.parent == short_path and not folder.exists() for folder in folders)


def test_an_agent_inside_a_worker_has_its_folder_in_that_of_the_agent_around(short_path: Path) -> None:
    assert choose_folder({"HVD_SOCKET": str(short_path / "agent.sock")}).parent == short_path


def test_a_folder_around_that_is_not_here_is_not_used(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    assert choose_folder({"HVD_SOCKET": "/no/such/folder/agent.sock"}).parent == short_path


def test_a_path_too_long_for_a_socket_is_not_used(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = short_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = choose_folder({"HVD_SOCKET": str(deep / "agent.sock")})
    assert folder.parent == Path("/tmp")  # noqa: S108 - where it is to be
    assert len(os.fsencode(folder / "agent.sock")) <= 107
