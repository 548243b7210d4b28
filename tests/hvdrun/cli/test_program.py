"""The command line: what becomes a job, and what is refused with which sentence and exit code."""

import asyncio
import io
import json
import os
import re
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.cli.completion import PROGRAMS
from hvdrun.cli.program import main, read_spec
from hvdrun.console import Console, Page
from hvdrun.errors import HostsFailedError, LaunchError, UsageError
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.messages import Level
from rendezvous.core.model import Host, Slot, Worker
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.interpreter import run_python
from tests.hvdrun.specs import build_spec, read_field

REFUSE = Mock(side_effect=AssertionError("it was launched"))


def test_words_become_a_job() -> None:
    options = ["-np", "3", "-H", "a:2,b:2", "--grace", "2s", "--lease", "1m", "--start-timeout", "500ms", "-v"]
    assert read_spec([*options, "true", "--grace", "9"]) == build_spec(
        command=("true", "--grace", "9"),
        size=3,
        hosts=(Host("a", 2), Host("b", 2)),
        directory=Path.cwd(),
        start_timeout_seconds=0.5,
        lease_seconds=60.0,
        grace_seconds=2.0,
        verbose=True,
    )


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        *(([flag, "2"], "size", 2) for flag in ("-np", "--np", "-n", "--num-proc")),
        *(([word], "size", 2) for word in ("-np=2", "--num-proc=2")),
        *(([flag, "a:2"], "hosts", (Host("a", 2),)) for flag in ("-H", "-host", "--host", "--hosts")),
        *(
            ([flag, "listed"], "hosts", (Host("a", 2),))
            for flag in ("--hostfile", "-hostfile", "-machinefile", "--machinefile")
        ),
        ([], "prefork", True),
        (["--no-prefork"], "prefork", False),
        ([], "marks_ranks", True),
        (["--no-prefix"], "marks_ranks", False),
        ([], "marks_times", False),
        (["--prefix-output-with-timestamp"], "marks_times", True),
        (["-prefix-timestamp"], "marks_times", True),
    ],
)
def test_each_spelling_of_an_option_is_read(
    words: list[str], name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listed").write_text("a slots=2")
    monkeypatch.chdir(tmp_path)
    size = [] if name == "size" else ["-np", "1"]
    assert read_field(read_spec([*size, *words, "true"]), name) == value


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [["-np", "1"], ["-np", "1", "--"]], ids=["options", "dashes"])
def test_a_program_is_one_only_as_the_first_word(
    options: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launched: list[JobSpec] = []

    def launch(spec: JobSpec, _: Console) -> int:
        launched.append(spec)
        return 7

    assert main([*options, name], launch) == 7
    assert [read_field(spec, "command") for spec in launched] == [(name,)]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python", "train.py", "-np", "9", "--help", "-H"], ("python", "train.py", "-np", "9", "--help", "-H")),
        (["--", "python", "--", "-v"], ("python", "--", "-v")),
        (["python", "--", "-v"], ("python", "--", "-v")),
        (["--", "-v"], ("-v",)),
        (["--", "--"], ("--",)),
        (["x", "", " ", "a\nb", "\udcff", "$HOME"], ("x", "", " ", "a\nb", "\udcff", "$HOME")),
    ],
)
def test_the_commands_own_words_pass_through_untouched(words: list[str], command: tuple[str, ...]) -> None:
    assert read_spec(["-np", "1", *words]).workers.command == command


def test_the_environment_stands_for_an_option_that_is_not_given_and_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "7")
    assert read_spec(["-np", "1", "true"]).limits.start_timeout_seconds == 7.0
    assert read_spec(["-np", "1", "--start-timeout", "9", "true"]).limits.start_timeout_seconds == 9.0
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "")
    assert read_spec(["-np", "1", "true"]).limits.start_timeout_seconds == 120.0
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "soon")
    with pytest.raises(UsageError, match=r"^\$HOROVOD_START_TIMEOUT"):
        read_spec(["-np", "1", "true"])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-np", "x", "true"], ["-np", "2", "no-such-program"]])
def test_a_command_line_without_a_job_imports_nothing_large(words: list[str]) -> None:
    heavy = {"grpc", "cryptography", "google", "asyncio", "psutil", "torch", "numpy"}
    rare = {"hvdrun.allocation.slurm", "hvdrun.joining", "subprocess"}
    program = (
        "import sys; from hvdrun.cli.program import main; main(sys.argv[1:]); "
        f"print(*{heavy | rare} & set(sys.modules))"
    )
    result = run_python("-c", program, *words)
    assert result.stdout.splitlines()[-1] == ""


def test_help_shows_groups_examples_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "all"], launch=REFUSE) == 0
    page = capsys.readouterr().out
    parts = ["Usage: hvdrun [options] C", "Workers:", "Hosts:", "Examples:", "--grace TIME", "124", "HOROVOD_"]
    assert [part for part in parts if part not in page] == []
    assert all(len(line) <= 80 for line in page.splitlines())


@pytest.mark.parametrize("words", [["-h"], ["-np", "x", "--help"], ["--help", "-np", "2", "no-such-program"]])
def test_help_is_printed_whatever_the_other_options_are(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, launch=REFUSE) == 0
    assert "Usage:" in capsys.readouterr().out


def test_the_result_of_the_launcher_is_the_exit_code() -> None:
    launch = Mock(return_value=33)
    assert main(["-np", "2", "true", "-v"], launch) == 33
    assert launch.call_args[0][0].workers.command == ("true", "-v")


def test_without_a_python_on_path_the_workers_get_hvdruns_python_and_v_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = Mock(return_value=0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["-np", "1", "-v", "python", "-c", "1"], launch) == 0
    assert launch.call_args[0][0].workers.command == (sys.executable, "-c", "1")
    captured = capfd.readouterr()
    assert captured.err == (f"hvdrun: PATH has no python: the workers use hvdrun's own interpreter, {sys.executable}\n")
    assert main(["-np", "1", "python", "-c", "1"], launch) == 0
    assert capfd.readouterr().err == ""


FAULT = "hvdrun: this is a bug in hvdrun"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LaunchError("the agent on a\ndid not start."), 125, "hvdrun: the agent on a did not start.\n"),
        (
            HostsFailedError([LaunchError("a is\ndown."), LaunchError("b is away.")], 3),
            125,
            "hvdrun: 2 of 3 hosts cannot be used:\n  a is down.\n  b is away.\n",
        ),
        (ZeroDivisionError("by 0\nor so"), 125, f"{FAULT}.*ZeroDivisionError: .*\n"),
        (ExceptionGroup("two", [ValueError(), OSError()]), 125, f"{FAULT}.*ExceptionGroup: .*\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_of_the_launcher_is_one_line_without_a_traceback(
    error: BaseException, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "1", "true", "-v"], Mock(side_effect=error)) == code  # that -v is the command's own
    assert re.fullmatch(said, capfd.readouterr().err)


def test_a_program_dies_of_ctrl_c_or_exits_as_if_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    former = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))  # process 1 would survive it
    try:
        assert main(["-np", "1", "true"], Mock(side_effect=KeyboardInterrupt)) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, former)
    assert sent == [(os.getpid(), signal.SIGINT)]


def test_with_v_a_fault_of_ours_shows_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "-v", "true"], Mock(side_effect=ZeroDivisionError)) == 125
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_a_program_may_take_the_place_of_standard_output() -> None:
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["--version"]) == 0
    assert printed.getvalue().startswith("hvdrun ")


def test_lines_before_an_error_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        console.notice("first")
        raise LaunchError("then.")

    assert main(["-np", "1", "true"], launch) == 125
    assert capfd.readouterr().err == "hvdrun: first\nhvdrun: then.\n"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("-H a:1,b:1", r"\[0@a\] text\n"),
        ("-H a:1,a:1", r"\[0\] text\n"),
        ("--no-prefix", r"text\n"),
        ("-prefix-timestamp", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[0\] text\n"),
    ],
)
def test_output_has_the_requested_marks(options: str, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        asyncio.run(console.output.write(Worker(Slot("a", 0), 1), 0, OutputStream.STDOUT, b"text\n"))
        return 0

    assert main(["-np", "1", *options.split(), "true"], launch) == 0
    assert re.fullmatch(line, capfd.readouterr().out)


def test_a_remark_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "1", "-mca", "pml", "ob1", "-mca", "btl", "^openib", "true"]
    assert main(words, lambda *_: 0) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdrun: -mca has no effect")


@pytest.mark.parametrize(
    ("words", "level", "verbose"),
    [
        ("", Level.INFO, False),
        ("-v", Level.DEBUG, True),
        ("--log-level debug -v", Level.DEBUG, True),
        ("--log-level Warning", Level.WARNING, False),
        ("--log-level FATAL", Level.ERROR, False),
        ("--log-level TRACE", Level.DEBUG, False),
    ],
)
def test_levels_are_those_of_hvdrun_or_horovods_words(words: str, level: Level, verbose: bool) -> None:
    display = read_spec(["-np", "1", *words.split(), "true"]).display
    assert (display.least_level, display.verbose) == (level, verbose)


@pytest.mark.parametrize("words", ["-v", "--log-level debug", "--log-level=TRACE"])
def test_a_bug_has_a_traceback_in_verbose_mode_and_always_in_the_log(
    words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def launch(_spec: JobSpec, _console: Console) -> int:
        raise AssertionError("never")

    assert main(["-np", "1", *words.split(), "--log-file", str(tmp_path / "log"), "true"], launch) == 125
    assert "Traceback" in capfd.readouterr().err
    text = (tmp_path / "log").read_text()
    assert "this is a bug in hvdrun: AssertionError: never\n" in text
    assert "Traceback" in text


def test_an_error_is_printed_once_and_is_in_the_log(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def launch(_spec: JobSpec, _console: Console) -> int:
        raise HostsFailedError([LaunchError("a"), LaunchError("b")], 2)

    path = tmp_path / "log"
    for words in (["--log-file", str(path)], []):
        assert main(["-np", "1", "--log-format", "json", *words, "true"], launch) == 125
    *lines, record = capfd.readouterr().err.splitlines()
    assert lines == ["hvdrun: 2 of 2 hosts cannot be used:", "  a", "  b"]
    for text in (record, path.read_text()):
        found = json.loads(text)
        assert (found["message"], found["details"]) == ("2 of 2 hosts cannot be used:", ["a", "b"])
    assert main(["-np", "1", "--log-file", str(tmp_path), "true"], launch) == 125
    assert "of --log-file cannot be written: Is a directory" in capfd.readouterr().err


def test_a_dry_run_writes_no_log(tmp_path: Path) -> None:
    assert main(["-np", "1", "--log-file", str(tmp_path / "log"), "--dry-run", "true"]) == 0
    assert not (tmp_path / "log").exists()


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}"


def test_lines_of_hvdrun_itself_carry_a_timestamp(capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        console.page(Page(rank=0, worker=Worker(Slot("a", 0), 1)))
        console.notice("words")
        raise HostsFailedError([LaunchError("a"), LaunchError("b")], 2)

    for words in (["true"], ["-np", "1", "true"]):
        assert main(["-prefix-timestamp", *words], launch) > 0
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(re.match(rf"{TIME} (hvdrun|  [ab])", line) for line in lines), lines


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (("python",), True),
        (("python3", "-u", "-", "x"), True),
        (("python", "-W", "error"), True),
        (("python", "-c", "1"), False),
        (("python", "-V"), False),
        (("--stdin", "0", "python"), False),
        (("cat",), False),
    ],
)
def test_a_python_that_reads_its_program_from_standard_input_is_refused(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str], *, is_refused: bool
) -> None:
    assert main(["-np", "2", *words], lambda *_: 0) == (2 if is_refused else 0)
    assert ("standard input, which the workers do not get" in capfd.readouterr().err) is is_refused


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["-v", "3", "python", "x"], "-np 3 -v python x"),
        (["-v", "python", "x", "-np", "4", "y"], "-np 4 -v python x y"),
        (["python", "x", "-n", "many"], "-np 2 python x -n many"),
        (
            ["-v", "python", "x", "--lr", "1", "--max-restarts", "2", "-np", "4", "--lease", "9s"],
            "-np 4 --max-restarts 2 --lease 9s -v python x --lr 1",
        ),
        (["-v", "--", "x.py", "-np", "4", "-v"], "-np 4 -v -v -- python x.py"),
        (["x.py", "--max-restarts", "2"], "-np 2 python x.py --max-restarts 2"),
        ([], "-np 2 python train.py"),
    ],
)
def test_a_misplaced_number_of_workers_is_refused_with_a_correct_command(
    words: list[str], example: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words, REFUSE) == 2
    assert capfd.readouterr().err.endswith(f"give it before the command (see hvdrun --help), as in hvdrun {example}.\n")
