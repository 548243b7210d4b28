"""The live line of a start: when it is shown, what it says, that it goes; and how a line is redrawn in place."""

import asyncio
import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace

import pytest

from hvdrun.console import start_line
from hvdrun.console.start_line import StartLine, StatusLine, describe_start
from hvdrun.console.writer import Writer
from rendezvous.core import membership
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Event, Exited, HostsChanged, Joined, Reported, Stopped, Ticked
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.core.state import StartProgress, State
from tests.house.sources import ROOT
from tests.hvdrun.console.screens import Screen
from tests.waiting import LIMIT_SECONDS, in_loop, wait_until

HALFWAY = StartProgress(connected=1, hosts=2, joined=3, workers=8)
A, B = Worker(Slot("a", 0), 1), Worker(Slot("b", 0), 1)
PLACED = (Ticked(0), HostsChanged((Host("a", 1), Host("b", 1))))


class Sheet(StatusLine):
    """Remembers what would be drawn, and sets an event when something is."""

    def __init__(self) -> None:
        super().__init__(Writer(), -1)
        self.drawn: list[str] = []
        self.changed = asyncio.Event()

    def show(self, text: str) -> None:
        """Draw."""
        self.drawn.append(text)
        self.changed.set()

    def erase(self) -> None:
        """Erase."""
        if self.drawn and self.drawn[-1]:
            self.drawn.append("")
            self.changed.set()

    async def wait(self, count: int) -> list[str]:
        """What was drawn, once it is so many lines."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(self.drawn) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.drawn


def make_line(
    sheet: StatusLine | None,
    look: Callable[[], StartProgress | None],
    clock: Callable[[], float] = lambda: 2.5,
    limit_seconds: float = 60.0,
) -> StartLine:
    return StartLine(sheet, look, limit_seconds=limit_seconds, clock=clock)


def live(*events: Event) -> State:
    state = membership.begin(Policy.static(2))
    for event in events:
        state, _ = membership.step(state, event)
    return state


def test_the_start_line_says_how_many_of_how_many_and_for_how_long() -> None:
    assert describe_start(HALFWAY, 2.44) == "hosts connected 1/2, workers joined 3/8, 2.4 s"
    assert describe_start(HALFWAY, 65) == "hosts connected 1/2, workers joined 3/8, 1 min 5 s"


@pytest.mark.parametrize(
    ("events", "progress"),
    [
        ((), StartProgress(0, 2, 0, 2)),
        ((Reported("a", (A,)),), StartProgress(1, 2, 0, 2)),
        ((Reported("a", (A,)), Joined(A, 0), Reported("b", (B,))), StartProgress(2, 2, 1, 2)),
        ((Joined(A, 0), Joined(B, 0)), None),
        ((Exited(A, 0),), None),
        ((Stopped(130, "Ctrl-C", immediately=False),), None),
    ],
    ids=["placed", "one host", "one worker", "all have joined", "a plain program has ended", "stopped"],
)
def test_progress_is_read_from_the_state(events: tuple[Event, ...], progress: StartProgress | None) -> None:
    assert live(*PLACED, *events).start_progress == progress


def test_a_start_that_begins_again_after_the_first_is_not_followed() -> None:
    state = live(*PLACED, Joined(A, 0), Joined(B, 0))
    assert replace(state, phase=Phase.FORMING).start_progress is None


@in_loop
async def test_a_long_start_is_reported_again_and_again_and_a_finished_one_no_more() -> None:
    sheet = Sheet()
    states = [None, replace(HALFWAY, joined=8), HALFWAY]
    line = make_line(sheet, states.pop)
    line.open(asyncio.get_running_loop(), 0.0)
    drawn = await sheet.wait(3)
    line.close()
    assert drawn == [
        "hvdrun: hosts connected 1/2, workers joined 3/8, 2.5 s",
        "hvdrun: hosts connected 1/2, workers joined 8/8, 2.5 s",
        "",
    ]


@in_loop
async def test_a_short_start_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_line, "PERIOD_SECONDS", LIMIT_SECONDS)
    sheet = Sheet()
    looks = 0

    def look() -> StartProgress:
        nonlocal looks
        looks += 1
        return HALFWAY

    line = make_line(sheet, look, clock=lambda: 0.0)
    line.open(asyncio.get_running_loop(), LIMIT_SECONDS)
    await asyncio.sleep(0)
    line.close()
    assert (sheet.drawn, looks) == ([], 0)
    line.open(asyncio.get_running_loop(), -start_line.PATIENCE_SECONDS)
    await sheet.wait(1)
    line.close()
    assert looks == 1


@in_loop
async def test_after_its_close_the_start_line_neither_looks_nor_shows() -> None:
    sheet = Sheet()
    line = make_line(sheet, lambda: HALFWAY)
    line.open(asyncio.get_running_loop(), 0.0)
    await sheet.wait(1)
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    line.close()
    line.close()
    await asyncio.wait({task}, timeout=LIMIT_SECONDS)
    assert task.cancelled()
    assert sheet.drawn[-1] == ""
    assert len(asyncio.all_tasks()) == 1


@in_loop
async def test_while_no_worker_joins_the_line_is_shown_for_a_limited_time_only() -> None:
    sheet = Sheet()
    times = iter([2.0, 2.0, 2.2])
    line = make_line(sheet, lambda: replace(HALFWAY, joined=0), times.__next__, limit_seconds=2.1)
    line.open(asyncio.get_running_loop(), 0.0)
    drawn = await sheet.wait(2)
    assert len(asyncio.all_tasks()) == 1
    line.close()
    assert drawn[1] == ""


@in_loop
async def test_while_the_job_waits_for_hosts_the_line_is_shown_without_a_limit() -> None:
    sheet = Sheet()
    waiting, joining = replace(HALFWAY, offered=1), replace(HALFWAY, joined=0)
    states, times = [joining, joining, waiting, waiting], iter([2.0, 2.0, 90.0, 92.0, 92.2])
    line = make_line(sheet, states.pop, times.__next__, limit_seconds=2.1)
    line.open(asyncio.get_running_loop(), 0.0)
    drawn = await sheet.wait(4)
    assert len(asyncio.all_tasks()) == 1
    line.close()
    assert drawn[1:] == [
        "hvdrun: waiting for hosts: 1 of 8 slots, 1 min 30 s",
        "hvdrun: hosts connected 1/2, workers joined 0/8, 1 min 32 s",
        "",
    ]


@pytest.mark.parametrize("policy", [Policy.elastic(1, None, 4), Policy.static(4)], ids=["elastic", "static"])
def test_a_job_that_waits_for_slots_says_how_many_there_are(policy: Policy) -> None:
    state = membership.begin(policy)
    state, _ = membership.step(state, HostsChanged((Host("a", 1), Host("b", 2))))
    assert state.start_progress is not None
    assert describe_start(state.start_progress, 2.0) == "waiting for hosts: 3 of 4 slots, 2.0 s"
    state, _ = membership.step(state, HostsChanged((Host("a", 1), Host("b", 3))))
    assert state.start_progress is not None
    assert describe_start(state.start_progress, 2.0) == "hosts connected 0/2, workers joined 0/4, 2.0 s"


def test_each_drawing_replaces_the_one_before(terminal: Screen) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.show("one")
    wait_until(lambda: not writer.is_behind)
    status.show("two")
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == "\r\x1b[Kone\r\x1b[Ktwo"


def test_the_start_line_is_erased_once(terminal: Screen) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.erase()
    status.show("one")
    status.erase()
    status.erase()
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == "\r\x1b[Kone\r\x1b[K"


@pytest.mark.parametrize(("columns", "usable"), [(40, 39), (0, 79)])
def test_the_start_line_is_cut_so_that_the_last_column_stays_free(terminal: Screen, columns: int, usable: int) -> None:
    fcntl.ioctl(terminal.writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    for length in (usable, usable + 1):
        writer = Writer()
        StatusLine(writer, terminal.writing).show("x" * length)
        writer.end(LIMIT_SECONDS)
    assert terminal.read() == f"\r\x1b[K{'x' * usable}\r\x1b[K{'x' * (usable - 1)}…"


def test_the_start_line_has_a_colour_where_that_is_wanted(terminal: Screen) -> None:
    writer = Writer()
    StatusLine(writer, terminal.writing, coloured=True).show("x")
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == "\r\x1b[K\x1b[36mx\x1b[0m"


def test_a_line_is_not_drawn_behind_what_a_paused_reader_has_not_taken(terminal: Screen) -> None:
    reading, writing = os.pipe()
    writer = Writer()
    writer.put(writing, b"x" * 1_000_000)
    StatusLine(writer, terminal.writing).show("drawn")
    writer.end(0)
    assert terminal.read() == ""
    os.close(reading)
    os.close(writing)


def test_a_line_is_not_drawn_from_the_background_of_a_terminal(terminal: Screen) -> None:
    program = """if True:
        import fcntl, os, sys, termios
        from hvdrun.console.start_line import StatusLine
        from hvdrun.console.writer import Writer
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        writer = Writer()
        StatusLine(writer, 2).show("front")
        writer.end(10)
        os.setpgid(0, 0)
        writer = Writer()
        StatusLine(writer, 2).show("behind")
        writer.end(10)
    """
    command = [sys.executable, "-c", program]
    end = terminal.writing
    subprocess.run(command, stdin=end, stdout=end, stderr=end, start_new_session=True, check=True, cwd=ROOT)
    assert terminal.read() == "\r\x1b[Kfront"
