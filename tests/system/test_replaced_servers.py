"""What the next server of a detached job knows of what the former one has seen, and does without."""

import json

from tests.system.detached import ask, detach, find_server, kill_server, wait_for_words
from tests.system.launcher import Launcher
from tests.waiting import wait_until

FAILS_ONCE = """
import os, time
round = os.environ["TORCHELASTIC_RESTART_COUNT"]
if (round, os.environ["RANK"]) == ("0", "1"):
    raise SystemExit(3)
open(f"round.{round}.{os.environ['RANK']}", "w")
while not os.path.exists("go"):
    time.sleep(0.02)
if os.environ["RANK"] == "0":
    raise SystemExit(4)
"""


def test_the_next_server_lists_each_loss_once_and_continues_without_a_log_file(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", FAILS_ONCE)
    (hvdrun.directory / "logs").mkdir()
    files = ("--outcome", "outcome.json", "--log-file", "logs/log")
    job = detach(hvdrun, "-np", "2", "--max-restarts", "1", *files, "python", "train.py")
    wait_until(lambda: len(list(hvdrun.directory.glob("round.1.*"))) == 2, "both to run again")
    wait_for_words(hvdrun, job, "run again after")
    (hvdrun.directory / "logs" / "log").unlink()
    (hvdrun.directory / "logs").rmdir()
    former = kill_server(hvdrun)
    wait_until(lambda: find_server(hvdrun) not in {None, former}, "another server")
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job).returncode == 4, ask(hvdrun, "logs", job)
    assert "of --log-file cannot be written, and lacks what hvdrun says" in ask(hvdrun, "logs", job).stderr
    found = json.loads((hvdrun.directory / "outcome.json").read_text())
    assert [(each["workers"], each["round"]) for each in found["sizes"]] == [(2, 0), (2, 1)]
    (loss,) = found["losses"]
    assert (loss["rank"], loss["exit_code"]) == (1, 3)
    begun = min(worker["started_at"] for worker in found["workers"] if worker["incarnation"] == 2)
    assert 0 <= loss["at"] <= begun
    assert loss["at"] + loss["recovery"]["reform_seconds"] < found["seconds"]
