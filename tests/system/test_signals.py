"""Each signal, to each process of a job: what `docs/signals.py` says, which the page of exit codes shows."""

import os
import runpy
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.house.sources import ROOT
from tests.lab.requirements import do_without, find_missing
from tests.system.launcher import Launcher, Running, is_pending
from tests.system.roles import read_state
from tests.system.scripts import WAIT_FOR
from tests.system.terminal import CTRL_C, CTRL_Z, Terminal
from tests.waiting import wait_until

CELLS: list[Any] = runpy.run_path(str(ROOT / "docs" / "signals.py"))["CELLS"]
PATIENT = "600s"  # a grace that no test waits for
OFTEN = {"training hvdrun", "training agent", "training all", "starting agent", "ending hvdrun"}
OFTEN |= {"recovering hvdrun", "elastic agent", "process 1 all"}
RARE = {"HUP", "XCPU", "TERM, HUP"}  # to others than hvdrun, who ends then as after SIGTERM
LEAVES = {"left", "lost"}
OPTIONS = {
    "recovering": ("--min-np", "2"),
    "elastic": ("--min-np", "1", "-H", "localhost:1,127.0.0.1:1"),
}
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")
KEYS = {"INT": CTRL_C, "TSTP": CTRL_Z}

# Rank 1 has no handlers where the signal is for it alone. The other saves until the test lets it.
TRAINS = f"""{WAIT_FOR}
asked = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
rank, is_new = int(os.environ["HOROVOD_RANK"]), os.environ["HVD_INCARNATION"] != "1"

def save(number, frame):
    for other in asked:
        signal.signal(other, signal.SIG_IGN)
    os.write(1, b"saving\\n")
    wait_for("saved")
    os.write(1, b"saved\\n")
    os._exit(0)

def show_life():
    os.write(1, b"pid %d lives\\n" % os.getpid())

def connect():
    from rendezvous.bootstrap import Bootstrap
    from rendezvous.client import WorkerClient
    return WorkerClient(Bootstrap.read(os.environ))

def train_elastically(loses_a_worker):
    from rendezvous.core.reports import JoinReason, Report
    client = connect()
    if is_new:
        show_life()
        wait_for("go")
    else:
        client.join(0)
        client.declare()
        pathlib.Path(f"declared{{rank}}").touch()
        wait_for(f"declared{{1 - rank}}")
        if loses_a_worker and rank == 1:
            os._exit(9)
        show_life()
        next(client.follow())
    client.join(1, Report(JoinReason.BEGIN if is_new else JoinReason.CONTINUE, has_state=not is_new))
    client.close()

if rank == 0 or sys.argv[1] != "worker":
    for number in asked:
        signal.signal(number, save)
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"got it\\n"))
if sys.argv[2] in ("recovering", "elastic"):
    train_elastically(sys.argv[2] == "recovering")
else:
    if sys.argv[2] == "training":
        client = connect()
        client.join(0)
        client.close()
    show_life()
wait_for("go")
"""


def start(hvdrun: Launcher, cells: list[Any]) -> tuple[Running, list[int]]:
    """A job in the phase of these cells, and the pids of their target."""
    cell, is_job = cells[0], any(cell.effect.word == "stopped" for cell in cells)
    before = CONTAINER if cell.phase == "process 1" else ()
    if before and (reason := find_missing()) is not None:
        do_without(reason)
    running = hvdrun.start(*prepare(hvdrun, cell), before=before, is_job=is_job)
    workers = [wait_for_word(running, rank, r"pid (\d+) lives") for rank in (0, 1)]
    everybody = hvdrun.processes()
    agents = [process.pid for process in everybody if process.command.endswith(" -m hvdrun.agent")]
    pids = [process.pid for process in everybody if "unshare" not in process.command]
    if cell.phase == "process 1":  # not what it leaves behind itself
        return running, {"hvdrun": pids[:1], "all": pids}[cell.target]
    return running, {"hvdrun": [running.pid], "agent": agents[-1:], "worker": workers[1:], "all": pids}[cell.target]


def prepare(hvdrun: Launcher, cell: Any) -> list[str]:
    """The words of a job that comes into this phase."""
    path = hvdrun.write("train.py", TRAINS)
    is_notice = "USR2" in cell.signals
    phase = "starting" if is_notice else cell.phase  # hvd.init() would handle a notice
    phase = "training" if phase in {"process 1", "terminal"} else phase
    options = ("--grace", "1s" if is_notice else PATIENT, *OPTIONS.get(phase, ()))
    return ["-np", "2", *options, "python", str(path), cell.target, phase]


def wait_for_word(running: Running, rank: int, words: str) -> int:
    """This worker prints this; the number in it, if there is one."""
    found = running.stdout.wait_for(rf"^\[{rank}(?:@\S+)?\] {words}$", 60)
    return int(found[1]) if found.lastindex else 0


def wait_for_words(running: Running, words: str) -> None:
    """All workers print this."""
    for rank in (0, 1):
        wait_for_word(running, rank, words)


def wait_for_effect(running: Running, word: str) -> None:
    """A job that continues shows what the signal has done."""
    hvdrun = psutil.Process(running.pid)
    if word == "stopped":
        wait_until(lambda: hvdrun.status() == psutil.STATUS_STOPPED)
        running.send(signal.SIGCONT)
        wait_until(lambda: hvdrun.status() != psutil.STATUS_STOPPED)
    elif word == "left":
        running.stderr.wait_for("the job continues without it", 60)
        wait_for_word(running, 1, "saved")
    elif word == "lost":
        running.stderr.wait_for("127.0.0.1", 60)
    elif word:
        wait_for_words(running, word)


def send(pids: list[int], *names: str) -> None:
    """Send these signals one after the other.

    Of two that wait, Linux delivers the lower number first. Where another one comes before the handler of the first has
    begun, the handler of the other one runs first.
    """
    for number, name in enumerate(names):
        if number:
            wait_until(lambda: all(map(is_asleep, pids)), "the handlers")
        for pid in pids:
            try:
                os.kill(pid, signal.Signals[f"SIG{name}"])
            except ProcessLookupError:  # an earlier one of these signals has ended it
                assert len(pids) > 1 or len(names) > 1
        wait_until(lambda: not any(map(is_pending, pids)), "the delivery")


def is_asleep(pid: int) -> bool:
    """No thread of this process runs: none is on its way to a handler."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return all(read_state(int(thread.name)) != "R" for thread in Path(f"/proc/{pid}/task").iterdir())
    return True


def list_rows() -> Iterator[Any]:
    """A test's parameters: the cells that one job shows, each alone if its signal ends something."""
    rows: dict[object, list[Any]] = {}
    for cell in CELLS:
        ends_nothing = not cell.effect.codes and cell.effect.word not in LEAVES
        rows.setdefault((cell.phase, cell.target) if ends_nothing else cell, []).append(cell)
    for cells in rows.values():
        phase, target = cells[0].phase, cells[0].target
        names = "; ".join(", ".join(cell.signals) for cell in cells)
        is_often = f"{phase} {target}" in OFTEN and (names not in RARE or target == "hvdrun")
        marks = [] if is_often else [pytest.mark.nightly]
        if phase != "terminal":
            yield pytest.param(cells, id=f"{names} to {target} while {phase}", marks=marks)


@pytest.mark.parametrize("cells", [*list_rows()])
def test_signals_do_what_the_page_of_exit_codes_says(hvdrun: Launcher, cells: list[Any]) -> None:
    phase, target, effect = cells[0].phase, cells[0].target, cells[0].effect
    running, pids = start(hvdrun, cells)
    if phase == "ending":
        running.send(signal.SIGTERM)
        wait_for_words(running, "saving")
    elif "KILL" not in cells[0].signals:
        hvdrun.write("saved", "")
    for cell in cells:
        send(pids, *cell.signals)
        if not effect.codes:
            wait_for_effect(running, cell.effect.word)
    if not effect.codes:
        hvdrun.write("go", "")
    if effect.word == "saved" or target != "hvdrun":
        hvdrun.write("saved", "")
    finished = running.wait()
    assert finished.returncode in (effect.codes or (0,)), finished
    if effect.word == "saved":
        assert {f"[{rank}] saved" for rank in (0, 1)} <= set(finished.stdout.splitlines())
    if not effect.codes and phase not in OPTIONS:
        assert finished.stderr == ""
    if cells[0].signals[-1] == "KILL" and target == "all":  # no process was left to remove the agent's folder
        assert hvdrun("-np", "1", "true").returncode == 0


@pytest.mark.nightly
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.phase == "terminal"], ids=lambda cell: cell.signals[0])
def test_a_key_does_what_the_page_of_exit_codes_says(hvdrun: Launcher, cell: Any) -> None:
    environment = {**hvdrun.environment(), "PS1": "$ ", "HISTFILE": "/dev/null", "NO_COLOR": "1"}
    hvdrun.write("saved", "")
    with Terminal(*SHELL, directory=hvdrun.directory, environment=environment) as shell:
        shell.press(f"{shlex.join(hvdrun.command(*prepare(hvdrun, cell)))}\n")
        shell.wait_for(r" lives\r$", 60, count=2)
        shell.press(KEYS[cell.signals[0]])
        if cell.effect.word == "stopped":
            shell.wait_for(r"^\[1\]\+ +Stopped", 60)
            hvdrun.write("go", "")
            shell.press("fg\n")
        shell.press("echo the code is $?; exit\n")
        assert shell.wait(60) == 0
    code = cell.effect.codes[0] if cell.effect.codes else 0
    assert f"the code is {code if code >= 0 else 128 - code}" in shell.screen()[-2]  # before the shell's own last word
