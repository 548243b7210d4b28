"""Each signal, to each process of a job: what `docs/signals.py` says, which the page of exit codes shows."""

import os
import runpy
import signal
from typing import Any

import psutil
import pytest

from tests.house.sources import ROOT
from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent
from tests.system.scripts import JOIN
from tests.waiting import wait_until

CELLS: list[Any] = runpy.run_path(str(ROOT / "docs" / "signals.py"))["CELLS"]
PATIENT = "600s"  # a grace that no test waits for
OFTEN = {"training hvdrun", "training agent", "training all", "starting agent", "ending hvdrun"}
QUIET = {"CONT", "PIPE", "TTIN"}

# Rank 1 has no handlers where the signal is for it alone. The other saves until the test lets it.
TRAINS = f"""{JOIN}
import signal
asked = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]

def save(number, frame):
    for other in asked:
        signal.signal(other, signal.SIG_IGN)
    os.write(1, b"saving\\n")
    wait_for("saved")
    os.write(1, b"saved\\n")
    os._exit(0)

if os.environ["HOROVOD_RANK"] == "0" or sys.argv[1] != "worker":
    for number in asked:
        signal.signal(number, save)
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"got it\\n"))
if sys.argv[2] == "training":
    join()
os.write(1, b"pid %d lives\\n" % os.getpid())
wait_for("go")
"""


def start(hvdrun: Launcher, cell: Any) -> tuple[Running, list[int]]:  # noqa: ANN401 - docs/ is no package
    """A job in this phase, and the pids of the target."""
    path = hvdrun.write("train.py", TRAINS)
    is_notice = "USR2" in cell.signals
    phase = "starting" if is_notice else cell.phase  # hvd.init() would handle a notice
    words = ("-np", "2", "--grace", "1s" if is_notice else PATIENT, "python", path, cell.target, phase)
    running = hvdrun.start(*words, is_job=cell.effect.word == "stopped")
    workers = [int(running.stdout.wait_for(rf"^\[{rank}\] pid (\d+) lives$", 60)[1]) for rank in (0, 1)]
    agent = find_agent(hvdrun)
    assert agent is not None
    everybody = [process.pid for process in hvdrun.processes()]
    return running, {"hvdrun": [running.pid], "agent": [agent], "worker": workers[1:], "all": everybody}[cell.target]


def wait_for_words(running: Running, words: str) -> None:
    """All workers print this."""
    for rank in (0, 1):
        running.stdout.wait_for(rf"^\[{rank}\] {words}$", 60)


def send(pids: list[int], *names: str) -> None:
    for name in names:
        for pid in pids:
            try:
                os.kill(pid, signal.Signals[f"SIG{name}"])
            except ProcessLookupError:  # an earlier one of these signals has ended it
                assert len(pids) > 1 or len(names) > 1


def is_often(cell: Any) -> bool:  # noqa: ANN401 - as above
    return f"{cell.phase} {cell.target}" in OFTEN and not QUIET.intersection(cell.signals)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=f"{', '.join(cell.signals)} to {cell.target} while {cell.phase}",
            marks=[] if is_often(cell) else [pytest.mark.nightly],
        )
        for cell in CELLS
    ],
)
def test_a_signal_does_what_the_page_of_exit_codes_says(hvdrun: Launcher, cell: Any) -> None:  # noqa: ANN401 - as above
    effect = cell.effect
    running, pids = start(hvdrun, cell)
    if cell.phase == "ending":
        running.send(signal.SIGTERM)
        wait_for_words(running, "saving")
    elif "KILL" not in cell.signals:
        hvdrun.write("saved", "")
    send(pids, *cell.signals)
    if effect.word == "stopped":
        wait_until(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED)
        running.send(signal.SIGCONT)
    elif effect.word and not effect.codes:
        wait_for_words(running, effect.word)
    if not effect.codes:
        hvdrun.write("go", "")
    if effect.word == "saved" or cell.target != "hvdrun":
        hvdrun.write("saved", "")
    finished = running.wait()
    assert finished.returncode in (effect.codes or (0,)), finished
    if effect.word == "saved":
        assert {f"[{rank}] saved" for rank in (0, 1)} <= set(finished.stdout.splitlines())
    if not effect.codes:
        assert finished.stderr == ""
    if cell.signals[-1] == "KILL" and cell.target == "all":  # nobody was left to remove the agent's folder
        assert hvdrun("-np", "1", "true").returncode == 0
