"""`hvdrun horovodrun`: the job it asks for, and the pages that it prints."""

import sys
from pathlib import Path

import pytest

from hvdrun.cli.horovodrun import HOROVOD_VERSION, ask, read_request, render
from hvdrun.cli.program import main, read_spec
from hvdrun.errors import LaunchError
from hvdrun.options.horovodrun import OPTIONS
from hvdrun.spec.jobspec import JobSpec
from tests.house.sources import ROOT


def read_job(words: list[str]) -> JobSpec:
    spec = read_request(words, {})
    assert isinstance(spec, JobSpec)
    return spec


def test_horovodrun_gives_the_same_job_with_horovods_marks() -> None:
    spec, same = read_job(["-np", "2", "--start", "9", "true"]), read_spec(["-np", "2", "--start-timeout", "9", "true"])
    assert spec.display.marks_as_horovod
    assert (spec.workers.size, spec.workers.hosts, spec.limits.start_timeout_seconds) == (
        same.workers.size,
        same.workers.hosts,
        same.limits.start_timeout_seconds,
    )


def test_limits_of_elastic_jobs_cause_a_remark_in_a_static_job() -> None:
    spec = read_job(["-np", "2", "--reset-limit", "3", "--cache-capacity", "1", "true"])
    assert not spec.is_elastic
    assert [remark.split()[0] for remark in spec.display.remarks] == ["--cache-capacity", "--reset-limit"]
    elastic = read_job(["-np", "2", "--min-np", "1", "--reset-limit", "3", "--slots-per-host", "2", "true"])
    assert elastic.limits.elasticity is not None
    assert elastic.limits.elasticity.recovery.reset_limit == 3
    assert [remark.split()[0] for remark in elastic.display.remarks] == ["--slots-per-host"]


def test_the_command_line_holds_over_the_file_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("strange: 1\nstall_check:\n  enabled: false\n  shutdown_time_seconds: 7\n", encoding="utf-8")
    spec = read_job(["-np", "2", "--stall-check", "--config-file", str(path), "true"])
    stalls = {name: value for name, value in spec.workers.forwarded.items() if b"STALL" in name}
    assert stalls == {b"HOROVOD_STALL_CHECK_DISABLE": b"0", b"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": b"7"}
    (remark,) = spec.display.remarks
    assert "'strange'" in remark


def test_errors_have_times_and_tracebacks_where_these_are_requested(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError

    assert main(["horovodrun", "-np", "1", "--verbose", "-prefix-timestamp", "true"], fail) == 125
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("20")


def test_pages_are_printed_by_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["horovodrun", "-v"]) == 0
    assert capfd.readouterr().out == f"{HOROVOD_VERSION}\n"
    assert main(["horovodrun", "--help"]) == 0
    page = capfd.readouterr().out
    assert all(", ".join(option.flags) in page for option in OPTIONS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["true"],
            "missing: give it before the command (see hvdrun --help), as in horovodrun -np 2 python train.py.",
        ),
        (["-np", "2"], "there is no command to run"),
        (["-np", "0", "true"], "-np takes a number of workers"),
    ],
)
def test_wrong_use_exits_with_2(words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["horovodrun", *words]) == 2
    assert sentence in capfd.readouterr().err


def test_check_build_lists_what_a_python_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = ask(sys.executable)
    assert (found["PyTorch"], found["Gloo"], found["TensorFlow"]) == (True, True, False)
    lines = render(found, "head").splitlines()
    assert lines[0] == "head:"
    assert lines[2:6] == ["Available Frameworks:", "    [ ] TensorFlow", "    [X] PyTorch", lines[5]]
    assert [line for line in lines if line.endswith("Gloo")] == ["    [X] Gloo"] * 2


@pytest.mark.parametrize(
    ("interpreter", "reason"), [("/absent/python", "cannot be started: No such file"), ("/bin/false", "code 1")]
)
def test_a_python_that_does_not_answer_is_an_error(interpreter: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        ask(interpreter)
