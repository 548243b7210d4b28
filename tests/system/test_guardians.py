"""The guardian of a detached job is killed, or its server again and again: `hvdrun resume`, and how the job ends."""

import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system import jumping_clock
from tests.system.counting import COUNTS, check_end, check_ended, kill_all, start
from tests.system.detached import (
    ask,
    detach,
    find_guardian,
    find_job,
    find_server,
    follow,
    kill_server,
    wait_for_words,
)
from tests.system.launcher import Finished, Launcher
from tests.system.roles import kill
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

CODE = 7
HOUR_SECONDS = 3600.0  # by which the jumping clock is set


def test_a_job_without_its_guardian_continues_and_keeps_its_exit_code(hvdrun: Launcher) -> None:
    job = start(hvdrun, code=CODE)
    server = find_server(hvdrun)
    kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) == server, "the server to hold the folder")
    assert f"{job}  running" in ask(hvdrun, "ps").stdout
    check_end(hvdrun, job, CODE)


def test_a_job_without_its_guardian_is_stopped(hvdrun: Launcher) -> None:
    job = start(hvdrun)
    server = find_server(hvdrun)
    kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) == server, "the server to hold the folder")
    assert ask(hvdrun, "stop", job).returncode == 0
    assert ask(hvdrun, "wait", job).returncode == 128 + signal.SIGTERM


def test_a_job_whose_guardian_and_server_are_killed_is_resumed(hvdrun: Launcher) -> None:
    job = start(hvdrun, code=CODE)
    kill_all(hvdrun)
    assert f"{job}  lost" in ask(hvdrun, "ps").stdout
    removed = ask(hvdrun, "rm", job)
    assert removed == Finished(1, "", f"hvdrun: the job {job} runs: stop it first, with hvdrun stop --here {job}.\n")

    scarce = ["sh", "-c", 'ulimit -n 20; exec "$@"', "sh", sys.executable, "-m", "hvdrun", "resume", job]
    refused = hvdrun.start_words(scarce).wait()
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "needs 64 open files" in refused.stderr
    assert f"{job}  lost" in ask(hvdrun, "ps").stdout
    resumed = ask(hvdrun, "resume", job)
    assert (resumed.returncode, resumed.stdout) == (0, "")
    tells = f"hvdrun logs {job} tells whether its workers go on"
    assert resumed.stderr.endswith(f"hvdrun: the job {job} has a server again: {tells}\n")
    again = ask(hvdrun, "resume", job)
    assert again == Finished(1, "", f"hvdrun: the job {job} cannot be resumed: it runs.\n")

    guardian = find_guardian(hvdrun)
    assert guardian is not None
    limits = resource.prlimit(guardian, resource.RLIMIT_NOFILE)
    resource.prlimit(guardian, resource.RLIMIT_NOFILE, (20, limits[1]))
    kill_server(hvdrun)  # the new guardian starts another one, too, which cannot start yet
    pause = "hvdrun: the job goes on without a server: another one is started in 1 s."
    wait_for_words(hvdrun, job, f"{pause}\n")
    resource.prlimit(guardian, resource.RLIMIT_NOFILE, limits)
    check_end(hvdrun, job, CODE)


def test_a_job_whose_workers_have_ended_meanwhile_is_resumed_to_its_end(hvdrun: Launcher) -> None:
    job = start(hvdrun)
    kill_all(hvdrun)
    hvdrun.write("go", "")
    wait_until(lambda: len(list(hvdrun.directory.glob("end.*"))) == 2, "both to end")
    assert ask(hvdrun, "resume", job).returncode == 0
    check_end(hvdrun, job, 0)


def test_a_job_that_cannot_be_resumed_is_refused_in_one_sentence(hvdrun: Launcher) -> None:
    job = start(hvdrun)
    kill_all(hvdrun)
    folder = hvdrun.state / "hvdrun" / job
    aside = hvdrun.directory / "aside"
    shutil.copytree(folder / "journal", aside)

    def refuse(code: int, *sentences: str) -> None:
        refused = ask(hvdrun, "resume", job)
        assert (refused.returncode, refused.stdout) == (code, ""), refused
        assert len(refused.stderr.splitlines()) == 1, refused
        assert all(sentence in refused.stderr for sentence in sentences), refused
        shutil.rmtree(folder / "journal", ignore_errors=True)
        shutil.copytree(aside, folder / "journal")

    launch = folder / "journal" / "launch"
    version, _, rest = launch.read_bytes().partition(b"\n")
    launch.write_bytes(b"0.0.1\n" + rest)
    refuse(1, "it was started by hvdrun 0.0.1, and this is " + version.decode())
    launch.write_bytes(version + b"\n" + rest[: len(rest) // 2])
    refuse(1, f"{str(launch)!r} is damaged")
    shutil.rmtree(folder / "journal")
    refuse(1, "it has no journal")
    flip(folder / "journal" / "journal.db")
    refuse(1, f"the job {job} cannot be resumed: the journal {folder / 'journal' / 'journal.db'} is damaged")
    (folder / "journal" / "journal.db").unlink()
    refuse(1, "it has no journal")
    assert ask(hvdrun, "resume", "feed").returncode == 69

    assert ask(hvdrun, "resume", job).returncode == 0
    check_end(hvdrun, job, 0)
    ended = ask(hvdrun, "resume", job)
    assert ended == Finished(1, "", f"hvdrun: the job {job} cannot be resumed: it has ended, with exit code 0.\n")


def flip(path: Path) -> None:
    """Damage a file in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 100 : len(data) // 2 + 100] = os.urandom(200)
    data[100:4000] = os.urandom(3900)
    path.write_bytes(data)


def test_a_server_that_is_stopped_for_longer_than_a_lease_loses_no_worker(hvdrun: Launcher) -> None:
    job = start(hvdrun, "--lease", "2s")
    server = kill(find_server(hvdrun), signal.SIGSTOP)
    time.sleep(3.0)  # longer than the lease is what is tested
    kill(server, signal.SIGCONT)
    check_end(hvdrun, job, 0)


def test_a_server_that_is_killed_five_times_in_a_minute_ends_the_job(hvdrun: Launcher) -> None:
    job = start(hvdrun, "--grace", "1s", "--outcome", "outcome.json")
    for _ in range(5):
        wait_until(lambda: find_server(hvdrun) is not None, "a server")
        kill_server(hvdrun)
    waited = ask(hvdrun, "wait", job)
    assert waited.returncode == 128 + signal.SIGKILL
    outcome = json.loads((hvdrun.directory / "outcome.json").read_text())
    assert (outcome["job"], outcome["exit_code"], len(outcome["workers"])) == (job, waited.returncode, 2)
    assert "5 servers of this job were killed" in outcome["first_cause"]["reason"]
    sentence = "hvdrun: 5 servers of this job were killed within 60 s, the last one by SIGKILL: the job ends."
    assert sentence in ask(hvdrun, "logs", find_job(hvdrun)).stderr.splitlines()
    wait_until(lambda: hvdrun.processes() == (), "the agent to end")


def test_a_job_that_no_server_can_continue_ends_with_its_workers(hvdrun: Launcher) -> None:
    job = start(hvdrun, "--grace", "1s", "--lease", "5s")
    for path in (hvdrun.state / "hvdrun" / job / "journal").glob("journal.db*"):
        path.unlink()
    kill_server(hvdrun)
    waited = ask(hvdrun, "wait", job)
    assert waited.returncode == 125
    assert "and no other can continue the job: its journal was removed" in ask(hvdrun, "logs", job).stderr
    wait_until(lambda: hvdrun.processes() == (), "the agent to end")


def test_a_job_whose_folder_was_removed_ends_by_a_notice_when_its_server_is_killed(hvdrun: Launcher) -> None:
    job = start(hvdrun, "--server-timeout", "1s", "--lease", "5s")
    server = find_server(hvdrun)
    shutil.rmtree(hvdrun.state / "hvdrun" / job)
    assert job in ask(hvdrun, "ps").stdout
    kill(server)
    wait_until(lambda: len(list(hvdrun.directory.glob("end.*"))) == 2, "both to end after the notice")
    wait_until(lambda: hvdrun.processes() == (), "the agent to end")


@pytest.mark.parametrize("is_early", rest_nightly([False, True]))
def test_a_clock_that_is_set_by_an_hour_ends_no_worker_and_no_limit(hvdrun: Launcher, is_early: bool) -> None:
    """Forward and back, while a server runs, and before the next one starts; is_early: it begins forward."""
    environment = jumping_clock.build(hvdrun.directory)
    clock = Clock(hvdrun.directory / "jump")
    if is_early:
        clock.set()
    hvdrun.write("count.py", COUNTS)
    words = ("--lease", "2s", "--server-timeout", "1800s", "--outcome", "outcome.json")
    job = detach(hvdrun, "-np", "2", *words, "python", "count.py", "0", environment=environment)

    def ask_then(*words: str) -> Finished:
        return hvdrun.start_words([sys.executable, "-m", "hvdrun", *words], environment).wait()

    lines = follow(hvdrun, job).stdout

    def await_lease() -> None:  # of 2 s: each of two workers prints a line in 20 ms or more
        first = lines.text().count("\n")
        wait_until(lambda: lines.text().count("\n") > first + 250, "the job to run for longer than its lease")
        assert re.search(rf"{job} +running +\S+ \S+ +(\d min )?[\d.]+ s +2 ", ask_then("ps").stdout)

    clock.set()
    await_lease()
    guardian, former = kill(find_guardian(hvdrun), signal.SIGSTOP), kill_server(hvdrun)
    clock.set()
    kill(guardian, signal.SIGCONT)
    wait_until(lambda: find_server(hvdrun) not in {None, former}, "another server")
    await_lease()
    waited = hvdrun.start_words([sys.executable, "-m", "hvdrun", "wait", job], environment)
    clock.set()
    kill(find_guardian(hvdrun), signal.SIGUSR2)  # a stop notice, at which the workers end
    assert waited.wait().returncode == 0
    check_ended(hvdrun, job, 0)
    outcome = json.loads((hvdrun.directory / "outcome.json").read_text())
    assert 0 < outcome["seconds"] < HOUR_SECONDS / 2
    assert all(0 < each["started_at"] < each["ended_at"] <= outcome["seconds"] for each in outcome["workers"])


class Clock:
    """The clock of a job, an hour forward or not.

    Args:
        path: of the file by which it is forward.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self) -> None:
        """Set it forward, or back again."""
        if self._path.exists():
            self._path.unlink()
        else:
            self._path.touch()


FILLS = """
import os, time
import torch
import worker_runtime.torch as hvd
hvd.init()
for step in range(20):
    if step == 10:
        open(f"running.{hvd.rank()}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.02)
    hvd.allreduce(torch.ones(1), name="gradient")
    os.write(1, b"step %d\\n" % step)
"""


def test_the_files_of_a_job_are_those_of_all_its_servers(hvdrun: Launcher) -> None:
    hvdrun.write("fill.py", FILLS)
    files = ("--output-filename", "out", "--outcome", "outcome.json", "--log-file", "log", "--timeline", "time.json")
    job = detach(hvdrun, "-np", "2", *files, "--checkpoint", "saved", "python", "fill.py")
    wait_until(lambda: len(list(hvdrun.directory.glob("running.*"))) == 2, "both to run")
    names = [hvdrun.directory / "out" / f"rank.{rank}" / "stdout" for rank in range(2)]
    wait_until(lambda: all("step 9" in name.read_text() for name in names), "the lines before the kill")
    kill_server(hvdrun)
    wait_for_words(hvdrun, job, "another one goes on")
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job).returncode == 0, ask(hvdrun, "logs", job)
    for rank, name in enumerate(names):
        assert name.read_text().splitlines() == [f"[{rank}] step {step}" for step in range(20)]
    index = json.loads((hvdrun.directory / "out" / "index.json").read_text())["files"]
    assert [(entry["rank"], entry["exit_code"]) for entry in index] == [(0, 0), (1, 0)]
    outcome = json.loads((hvdrun.directory / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["losses"]) == (0, [])
    workers = outcome["workers"]
    assert [(worker["rank"], worker["exit_code"]) for worker in workers] == [(0, 0), (1, 0)]
    assert all(worker["started_at"] < worker["ended_at"] <= outcome["seconds"] for worker in workers)
    assert "another one goes on" in (hvdrun.directory / "log").read_text()
    assert json.loads((hvdrun.directory / "time.json").read_text())


NEVER_JOINS = """
import os, time
os.write(1, b"before\\n")
if os.environ["RANK"] == "1":
    raise SystemExit
while not os.path.exists("go"):
    time.sleep(0.02)
os.write(1, b"after\\n")
"""


def test_the_files_of_workers_that_never_join_are_those_of_all_servers(hvdrun: Launcher) -> None:
    hvdrun.write("plain.py", NEVER_JOINS)
    files = ("--output-filename", "out", "--outcome", "outcome.json")
    job = detach(hvdrun, "-np", "2", *files, "python", "plain.py")

    def read_codes(name: str, key: str) -> list[tuple[int, int | None]]:
        with suppress(OSError):  # it is not there yet
            rows = json.loads((hvdrun.directory / name).read_text())[key]
            return sorted((row["rank"], row["exit_code"]) for row in rows)
        return []

    wait_until(lambda: read_codes("out/index.json", "files") == [(0, None), (1, 0)], "the end of one to be noted")
    kill_server(hvdrun)
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job).returncode == 0, ask(hvdrun, "logs", job)
    outputs = [(hvdrun.directory / "out" / f"rank.{rank}" / "stdout").read_text() for rank in range(2)]
    assert outputs == ["[0] before\n[0] after\n", "[1] before\n"]
    assert read_codes("out/index.json", "files") == [(0, 0), (1, 0)]
    assert read_codes("outcome.json", "workers") == [(0, 0), (1, 0)]


TRAINS = """
import os, sys, time
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0)
@hvd.elastic.run
def train(state):
    while not hvd.broadcast_object(os.path.exists("go"), name="go"):
        hvd.allreduce(torch.ones(1), name="gradient")
        open(f"running.{hvd.rank()}.{os.getpid()}", "w").close()
        time.sleep(0.02)
        state.commit()
train(state)
"""


def test_a_job_whose_script_is_away_with_the_server_trains_on(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    hvdrun.write("hosts", "localhost:2")
    script = hvdrun.directory / "find"
    script.write_text("#!/bin/sh\ncat hosts\n")
    script.chmod(0o700)
    job = detach(hvdrun, "-np", "2", "--min-np", "1", "--host-discovery-script", "./find", "python", "train.py")
    wait_until(lambda: len(list(hvdrun.directory.glob("running.*"))) == 2, "both to train")
    script.rename(hvdrun.directory / "aside")
    kill_server(hvdrun)
    wait_for_words(hvdrun, job, "; the hosts that it named last stay.")
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", job).returncode == 0
    assert len(list(hvdrun.directory.glob("running.*"))) == 2
