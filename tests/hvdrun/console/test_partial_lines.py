"""When the beginning of a line is shown."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdrun.console.files import OutputFiles
from hvdrun.console.folding import Source
from hvdrun.console.marks import Marks, OutputMarker
from hvdrun.console.output import OutputPrinter
from hvdrun.console.partial_lines import PartialLines
from hvdrun.console.writer import Writer
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.console.screens import at
from tests.waiting import in_loop

LINE = Source(at(0), OutputStream.STDOUT)


async def see(look: Callable[[], str], text: str) -> None:
    """Wait until this text is to be seen."""
    while look() != text:  # noqa: ASYNC110 - a thread writes it
        await asyncio.sleep(0.001)


@in_loop
async def test_a_line_that_does_not_end_is_shown_after_its_time() -> None:
    shown = asyncio.Queue[Source]()
    lines = PartialLines(shown.put_nowait)
    for _ in range(2):
        lines.note(LINE, 0, has_ended=False, has_begun=True)
        assert await shown.get() == LINE


@in_loop
async def test_a_line_that_begins_after_another_has_its_own_time() -> None:
    shown: list[Source] = []
    lines = PartialLines(shown.append)
    lines.note(LINE, 0, has_ended=False, has_begun=True)
    lines.note(LINE, 3600, has_ended=True, has_begun=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not shown
    lines.call_off_all()


@in_loop
async def test_a_row_of_dots_reaches_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("files", "output"):
        monkeypatch.setattr(f"hvdrun.console.{module}.IN_A_FILE_SECONDS", 0)
    log, copy = tmp_path / "log", tmp_path / "rank.0" / "stdout"
    files = OutputFiles(tmp_path, 1, Marks())
    files.create(1)
    with log.open("wb") as file:
        printer = OutputPrinter(OutputMarker(Marks()), Writer(), dict.fromkeys(OutputStream, file.fileno()))
        printer.copy_to(files)
        await printer.write(at(0), 0, OutputStream.STDOUT, b"..")
        await see(log.read_text, "[0] ..")
        await see(copy.read_text, "[0] ..")
        await printer.write(at(0), 0, OutputStream.STDOUT, b".\n")
        assert await printer.close(60)
    assert log.read_text() == copy.read_text() == "[0] ...\n"
