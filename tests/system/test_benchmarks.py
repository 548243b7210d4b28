"""The benchmarks inside a job run, by themselves and under hvdrun, in their smallest form; the figures are not judged.

They check what they compute: each sum, and after training the parameters of every way of averaging.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks import needs_mxnet
from tests.house.gpu_figures import NOT_MEASURED, list_programs, measure
from tests.house.sources import ROOT
from tests.lab.requirements import require_lab
from tests.system.launcher import Finished, Launcher

STEP_TIME = ROOT / "benchmarks" / "step_time.py"
RECOVERY = ROOT / "benchmarks" / "recovery.py"
RESTART = ROOT / "benchmarks" / "restart.py"
COLLECTIVES = ROOT / "benchmarks" / "collectives.py"
FUNCTIONS = ROOT / "benchmarks" / "functions.py"
BANDWIDTH = ROOT / "benchmarks" / "bandwidth.py"
SNAPSHOT = ROOT / "benchmarks" / "snapshot.py"
JOURNAL = ROOT / "benchmarks" / "journal.py"
SCALE = ROOT / "benchmarks" / "scale.py"
MXNET_STEP = ROOT / "benchmarks" / "mxnet_step.py"
SHORT = ("--pairs", "2", "--most-pairs", "2")
_LIMIT_SECONDS = 220.0

pytestmark = pytest.mark.nightly


def run_alone(hvdrun: Launcher, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script as a user who does not start hvdrun."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )


def read_errors(run: subprocess.CompletedProcess[str] | Finished) -> list[str]:
    """Standard error, without the line at the end of a job that has taken more than a minute."""
    return [line for line in run.stderr.splitlines() if not line.startswith("hvdrun: goodput ")]


def test_functions_are_run_again_on_warm_workers(hvdrun: Launcher) -> None:
    run = run_alone(hvdrun, FUNCTIONS, "--rounds", "2", "--json", "functions.json")
    assert run.returncode == 0, run.stderr
    assert "run_again <= 20 ms (median): " in run.stdout
    assert (hvdrun.directory / "functions.json").exists()


def test_the_cost_of_a_snapshot_beside_the_copy_is_measured(hvdrun: Launcher) -> None:
    run = run_alone(hvdrun, SNAPSHOT, "--rounds", "2", "--width", "8")
    assert run.returncode == 0, run.stderr
    assert re.search(r"25 million parameters and Adam \| 795 \| \S+ MB \| \S+ ms \| \S+ ms", run.stdout)


def test_the_costs_of_durable_decisions_are_measured(hvdrun: Launcher) -> None:
    run = run_alone(hvdrun, JOURNAL, "--hosts", "10", "--decisions", "20")
    assert run.returncode == 0, run.stderr
    assert re.search(r"one decision a write \| 20 \| \S+ ms \| \S+ ms \|", run.stdout)
    assert re.search(r"5 heartbeats of all hosts \| 50 \| .* \| 0 B \| 0.00 MB \|", run.stdout)
    assert "The next server reads it in " in run.stdout


def test_scale_forms_and_loses_a_generation_of_every_size(hvdrun: Launcher) -> None:
    small = ("--hosts", "20", "--sizes", "20", "40", "--ranks", "8", "--forming", "8", "--ssh", "5", "--runs", "1")
    run = run_alone(hvdrun, SCALE, *small, "--json", "scale.json")
    assert read_errors(run) == []
    figures = json.loads((hvdrun.directory / "scale.json").read_text(encoding="utf-8"))
    (tls,), codec = figures["tls"], figures["codec"]
    assert (tls["hosts"], tls["workers"], [each["hosts"] for each in codec]) == (20, 160, [20, 40])
    assert min(tls["join_seconds"], tls["loss_seconds"], tls["next_seconds"]) > 0
    assert figures["forming"][0]["found_seconds"] > 0
    assert all(each["sent"]["hosts are told of the next"] > 0 for each in codec)
    assert all(f"| {row['what']} | {row['figure']} |" in run.stdout for row in figures["table"])


def test_step_time_starts_its_job_and_holds_every_target(hvdrun: Launcher) -> None:
    run = run_alone(hvdrun, STEP_TIME, *SHORT, "--json", "step_time.json")
    assert (run.returncode, read_errors(run)) == (0, [])
    figures = json.loads((hvdrun.directory / "step_time.json").read_text(encoding="utf-8"))
    assert figures["machine"] in run.stdout
    assert [len(table["targets"]) for table in figures["tables"]] == [3, 2, 2]
    for table in figures["tables"]:
        assert f"### {table['title']}\n" in run.stdout
        names = {line["name"] for line in table["lines"]}
        assert {"no communication", "DDP", "DDP, bucket view", "hvdrun, static", "hvdrun, elastic"} <= names


def test_step_time_fails_when_a_replica_differs(hvdrun: Launcher) -> None:
    spoilt = STEP_TIME.read_text(encoding="utf-8").replace(
        "optimizer.step()\n",
        "optimizer.step()\n"
        "            if type(optimizer) is torch.optim.SGD:  # ours, compared each step, would say it first\n"
        "                next(model.parameters()).data.add_(dist.get_rank())\n",
    )
    script = hvdrun.write("spoilt.py", f"import sys; sys.path.insert(0, {str(STEP_TIME.parent)!r})\n{spoilt}")
    finished = hvdrun("-np", "2", "python", script, *SHORT, "--model", "small")
    assert finished.returncode == 1
    assert "RuntimeError: DDP: rank 1 has other parameters than rank 0" in finished.stderr


def test_collectives_take_part_in_a_job(hvdrun: Launcher) -> None:
    finished = hvdrun("--no-prefix", "-np", "2", "python", COLLECTIVES, *SHORT, limit_seconds=_LIMIT_SECONDS)
    assert (finished.returncode, read_errors(finished)) == (0, [])
    cases = ["1 KB", "1 KB, rank 0 busy", "64 MB", "1,000 tensors of 64 B", "objects of 1 KB"]
    cases.append("SyncBatchNorm, 64 x 32 x 32 x 32")
    assert re.findall("^### (.*), N=2$", finished.stdout, re.MULTILINE) == cases


def test_the_recovery_benchmark_shows_each_part_and_loses_no_step(hvdrun: Launcher) -> None:
    case = ("--runs", "1", "--cases", "three", "--warm", "0", "--json", "recovery.json")
    run = run_alone(hvdrun, RECOVERY, *case)
    assert run.returncode == 0, run.stderr
    (found,) = json.loads((hvdrun.directory / "recovery.json").read_text(encoding="utf-8"))["cases"]
    (figures,) = found["runs"]
    parts = [figures[part] for part in ("detect", "agree", "rebuild", "step")]
    assert min(parts) >= 0  # where one has stood still, others may have gone ahead meanwhile
    assert sum(parts) == pytest.approx(figures["shrink"])
    assert figures["started"] < figures["ready"] < figures["full size"]
    assert figures["steps lost"] == 0
    assert "| the same, one of three | " in run.stdout
    assert run.stdout.count("one of three: ") == 3


def test_a_profile_is_written_for_each_of_our_ways(hvdrun: Launcher) -> None:
    profile = hvdrun.directory / "step.pstats"
    finished = hvdrun("-np", "2", "python", STEP_TIME, *SHORT, "--model", "small", "--profile", profile)
    assert (finished.returncode, read_errors(finished)) == (0, [])
    written = sorted(path.name.partition("N-2-")[2] for path in hvdrun.directory.glob("step-*.pstats"))
    assert written == ["hvdrun-elastic.pstats", "hvdrun-static.pstats"]
    assert "run_backward" in finished.stdout
    assert "DDP" not in finished.stdout


@needs_mxnet
def test_mxnet_s_step_is_measured_and_the_parameters_agree(hvdrun: Launcher) -> None:
    command = ("python", MXNET_STEP, "--model", "small", *SHORT, "--json", "figures.json")
    finished = hvdrun("-np", "2", *command, environment={"OMP_NUM_THREADS": "1"}, limit_seconds=_LIMIT_SECONDS)
    assert (finished.returncode, read_errors(finished)) == (0, [])
    step, training, commit = json.loads((hvdrun.directory / "figures.json").read_text(encoding="utf-8"))["tables"]
    assert [line["name"] for line in commit["lines"]] == ["a copy of the same arrays", "hvd.elastic.GluonState.commit"]
    assert {line["name"] for line in step["lines"]} >= {
        "torch's grouped_allreduce_, MXNet's update",
        "MXNet, DistributedTrainer.step",
        "MXNet, Trainer.step of a DistributedOptimizer",
        "MXNet, no communication",
        "torch, DistributedOptimizer.step",
    }
    assert {line["name"] for line in training["lines"]} >= {"MXNet, DistributedTrainer.step", "MXNet, no communication"}


def test_the_bandwidth_between_workers_is_measured(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "python", str(BANDWIDTH), "--device", "cpu", "--bytes", "4194304")
    assert finished.returncode == 0, finished.stderr
    assert '{"workers": 2, "bytes": 4194304, "gigabytes_per_second": ' in finished.stdout


def test_restart_measures_each_kill_until_all_train_again(hvdrun: Launcher) -> None:
    (hvdrun.directory / "restart.json").write_text('{"torchrun, 2 kills": {"seconds": []}}', encoding="utf-8")
    small = ("--kills", "1", "--peers", "0", "--kinds", "blocked", "--seconds", "0.2")
    run = run_alone(hvdrun, RESTART, *small, "--json", "restart.json")
    assert read_errors(run) == []
    rows = json.loads((hvdrun.directory / "restart.json").read_text(encoding="utf-8"))
    (seconds,) = rows["blocked, 1 kills"]["seconds"]
    assert seconds > 0
    assert list(rows) == ["torchrun, 2 kills", "blocked, 1 kills"]
    assert "| hvdrun, the others are in a collective | 1 of 1 |" in run.stdout


def test_the_restart_benchmark_on_two_hosts_shows_resources_in_use_and_left(hvdrun: Launcher) -> None:
    require_lab()
    small = ("--host-kills", "2", "--peers", "0", "--kinds", "hosts", "--seconds", "0.2")
    run = run_alone(hvdrun, RESTART, *small, "--json", "restart.json")
    assert read_errors(run) == []
    row = json.loads((hvdrun.directory / "restart.json").read_text(encoding="utf-8"))["hosts, 2 kills"]
    assert len(row["seconds"]) == 2
    assert (row["returncode"], row["left"]) == (0, [])
    processes = [f"{part} on {host}" for host in ("host1", "host2") for part in ("agent", "forkserver")]
    for look in (row["early"], row["late"]):
        assert list(look["sizes"]) == ["launcher", *processes]
        assert min(size["resident_bytes"] for size in look["sizes"].values()) > 0
        assert look["traces"] > 0
    assert "| hvdrun, on two hosts over SSH | 2 of 2 |" in run.stdout
    assert "left behind on the hosts after 2 kills: nothing" in run.stdout


def test_a_measurement_of_a_card_runs_on_the_cpu(hvdrun: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hvdrun.environment().items():
        monkeypatch.setenv(name, value)
    programs = list_programs(hvdrun.directory, "cpu", "gloo", 1, "--rounds", "2")
    rows = dict(pair for _, reported in measure(programs, _LIMIT_SECONDS) for pair in reported.items())
    models = ("25 M parameters in 120 tensors", "10,200 parameters in 8 tensors")
    steps = [f"step, {model}, N={size}" for size in (2, 1) for model in models]
    assert list(rows) == [*steps[:2], "overlap, N=2", *steps[2:], "recovery", "bandwidth"]
    assert not [figure for figure in rows.values() if NOT_MEASURED in figure]
