"""The command line: what becomes a job, and what is refused with which sentence and exit code."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdrun import __version__
from hvdrun.cli import main, read_spec
from hvdrun.console import Console
from hvdrun.errors import HostsFailedError, LaunchError, UsageError
from hvdrun.jobspec import JobSpec
from rendezvous.core.model import Host, Slot, Worker
from rendezvous.orders import OutputStream

ROOT = Path(__file__).parents[2]


def refuse_to_launch(spec: JobSpec, _console: Console) -> int:
    pytest.fail(f"{spec} was launched")


def test_words_become_a_job() -> None:
    options = ["-np", "3", "-H", "a:2,b:2", "--grace", "2s", "--lease", "1m", "--start-timeout", "500ms", "-v"]
    assert read_spec([*options, "true", "--grace", "9"]) == JobSpec(
        command=("true", "--grace", "9"),
        size=3,
        hosts=(Host("a", 2), Host("b", 2)),
        directory=Path.cwd(),
        start_timeout_seconds=0.5,
        lease_seconds=60.0,
        grace_seconds=2.0,
        verbose=True,
    )


def test_what_is_not_said_has_its_default() -> None:
    spec = read_spec(["-np", "2", "true"])
    assert spec == JobSpec(("true",), 2, (Host("localhost", 2),), Path.cwd())


def test_forking_can_be_refused() -> None:
    assert read_spec(["-np", "2", "true"]).prefork
    assert not read_spec(["-np", "2", "--no-prefork", "true"]).prefork


def test_the_marks_of_the_output_can_be_chosen() -> None:
    spec = read_spec(["-np", "2", "true"])
    assert (spec.marks_ranks, spec.marks_times) == (True, False)
    assert not read_spec(["-np", "2", "--no-prefix", "true"]).marks_ranks
    for flag in ("--prefix-output-with-timestamp", "-prefix-timestamp"):
        assert read_spec(["-np", "2", flag, "true"]).marks_times


@pytest.mark.parametrize("flag", ["-np", "--np", "-n", "--num-proc"])
def test_the_number_of_workers_has_several_spellings(flag: str) -> None:
    assert read_spec([flag, "2", "true"]).size == 2


@pytest.mark.parametrize("word", ["-np=2", "--num-proc=2"])
def test_a_long_flag_takes_its_value_with_an_equals_sign(word: str) -> None:
    assert read_spec([word, "true"]).size == 2


@pytest.mark.parametrize("flag", ["-H", "-host", "--host", "--hosts"])
def test_the_list_of_hosts_has_several_spellings(flag: str) -> None:
    assert read_spec(["-np", "1", flag, "a:2", "true"]).hosts == (Host("a", 2),)


@pytest.mark.parametrize("flag", ["--hostfile", "-hostfile", "-machinefile", "--machinefile"])
def test_the_hostfile_has_several_spellings(flag: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2")
    assert read_spec(["-np", "1", flag, str(tmp_path / "hosts"), "true"]).hosts == (Host("a", 2),)


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
    assert read_spec(["-np", "1", *words]).command == command


def test_the_environment_stands_for_an_option_that_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "7")
    assert read_spec(["-np", "1", "true"]).start_timeout_seconds == 7.0
    assert read_spec(["-np", "1", "--start-timeout", "9", "true"]).start_timeout_seconds == 9.0
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "")
    assert read_spec(["-np", "1", "true"]).start_timeout_seconds == 120.0


def test_a_bad_value_from_the_environment_is_blamed_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "soon")
    with pytest.raises(UsageError, match=r"^\$HOROVOD_START_TIMEOUT"):
        read_spec(["-np", "1", "true"])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-np", "x", "true"], ["-np", "2", "no-such-program"]])
def test_what_needs_no_job_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys; from hvdrun.cli import main; main(sys.argv[1:]); "
        "print(*{'grpc', 'rich', 'cryptography', 'google', 'asyncio', 'psutil', 'torch', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, check=True, cwd=ROOT, timeout=30, text=True
    )
    assert result.stdout.splitlines()[-1] == ""


def test_help_shows_groups_examples_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], launch=refuse_to_launch) == 0
    page = capsys.readouterr().out
    for part in (
        "Usage: hvdrun [options] COMMAND",
        "Workers:",
        "Hosts:",
        "Examples:",
        "--grace TIME",
        "124",
        "HOROVOD_",
    ):
        assert part in page
    assert all(len(line) <= 80 for line in page.splitlines())


@pytest.mark.parametrize("words", [["-h"], ["-np", "x", "--help"], ["--help", "-np", "2", "no-such-program"]])
def test_help_is_given_whatever_else_is_asked(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, launch=refuse_to_launch) == 0
    assert "Usage:" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hvdrun {__version__}\n"


def test_what_the_launcher_returns_is_the_exit_code() -> None:
    seen: list[JobSpec] = []

    def launch(spec: JobSpec, _console: Console) -> int:
        seen.append(spec)
        return 33

    assert main(["-np", "2", "true", "-v"], launch) == 33
    assert [spec.command for spec in seen] == [("true", "-v")]


def test_without_a_python_on_path_the_workers_get_hvdruns_own_and_v_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def launch(spec: JobSpec, _console: Console) -> int:
        commands.append(spec.command)
        return 0

    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["-np", "1", "-v", "python", "-c", "1"], launch) == 0
    assert commands == [(sys.executable, "-c", "1")]
    captured = capfd.readouterr()
    assert captured.err == (f"hvdrun: PATH has no python: the workers use hvdrun's own interpreter, {sys.executable}\n")
    assert main(["-np", "1", "python", "-c", "1"], launch) == 0
    assert capfd.readouterr().err == ""


def raise_error(error: BaseException) -> Callable[[JobSpec, Console], int]:
    def launch(_spec: JobSpec, _console: Console) -> int:
        raise error

    return launch


def test_an_error_of_the_launcher_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "true"], raise_error(LaunchError("the agent on a\ndid not start."))) == 125
    assert capfd.readouterr().err == "hvdrun: the agent on a did not start.\n"


def test_hosts_that_failed_are_one_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    error = HostsFailedError([LaunchError("a is\ndown."), LaunchError("b is away.")], 3)
    assert main(["-np", "1", "true"], raise_error(error)) == 125
    assert capfd.readouterr().err == "hvdrun: 2 of 3 hosts cannot be used:\n  a is down.\n  b is away.\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by 0\nor so"), ExceptionGroup("two", [ValueError(), OSError()])], ids=["one", "group"]
)
def test_a_fault_of_ours_is_one_line_with_its_type(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "true"], raise_error(error)) == 125
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdrun: this is a fault of hvdrun's own")
    assert f"{type(error).__name__}: " in line


def test_with_v_a_fault_of_ours_shows_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "-v", "true"], raise_error(ZeroDivisionError())) == 125
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_the_commands_own_v_shows_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "true", "-v"], raise_error(ZeroDivisionError())) == 125
    assert "Traceback" not in capfd.readouterr().err


def test_an_interruption_before_the_job_is_130_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "1", "true"], raise_error(KeyboardInterrupt())) == 130
    assert capfd.readouterr().err == ""


def test_what_was_said_before_an_error_is_still_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        console.notice("first")
        raise LaunchError("then.")

    assert main(["-np", "1", "true"], launch) == 125
    assert capfd.readouterr().err == "hvdrun: first\nhvdrun: then.\n"


def test_several_hosts_are_named_in_the_output_and_one_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        asyncio.run(console.output.write(Worker(Slot("a", 0), 1), 0, OutputStream.STDOUT, b"text\n"))
        return 0

    assert main(["-np", "1", "-H", "a:1,b:1", "true"], launch) == 0
    assert capfd.readouterr().out == "[0@a] text\n"
    assert main(["-np", "1", "-H", "a:1,a:1", "true"], launch) == 0
    assert capfd.readouterr().out == "[0] text\n"


def test_the_output_has_the_marks_that_were_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    def launch(_spec: JobSpec, console: Console) -> int:
        asyncio.run(console.output.write(Worker(Slot("a", 0), 1), 0, OutputStream.STDOUT, b"text\n"))
        return 0

    assert main(["-np", "1", "--no-prefix", "true"], launch) == 0
    assert capfd.readouterr().out == "text\n"
    assert main(["-np", "1", "-prefix-timestamp", "true"], launch) == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[0\] text\n", capfd.readouterr().out)


def test_what_should_be_known_of_a_request_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "1", "-mca", "pml", "ob1", "-mca", "btl", "^openib", "true"]
    assert main(words, lambda *_: 0) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdrun: -mca has no effect")


def test_a_job_on_another_host_is_told_what_it_will_run(capfd: pytest.CaptureFixture[str]) -> None:
    specs = []

    def launch(spec: JobSpec, _console: Console) -> int:
        specs.append(spec)
        return 0

    there = ["--remote-python", "/there/python", "-v", "python", "no-such-script.py"]
    assert main(["-np", "1", "-H", "no-such-host.invalid", *there], launch) == 0
    assert specs[0].remote.hosts == {"no-such-host.invalid"}
    assert specs[0].command_on("no-such-host.invalid") == ("/there/python", "no-such-script.py")
    assert "/there/python" in capfd.readouterr().err


def test_a_dry_run_starts_nothing_and_prints_the_plan(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "2", "--dry-run", "sh", "-c", "true"], refuse_to_launch) == 0
    captured = capfd.readouterr()
    assert "\n1     1           0           localhost  1\n" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-np", "2", "no-such-program"], 127),
        (["-np", "9", "-H", "a:1", "true"], 2),
        (["-np", "1", "python", "no.py"], 2),
    ],
)
def test_a_dry_run_of_what_could_not_start_fails_as_the_start_would(words: list[str], code: int) -> None:
    assert main(["--dry-run", *words], refuse_to_launch) == code


def test_a_dry_run_with_hvdruns_own_python_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["-np", "1", "--dry-run", "python", "-c", "1"], refuse_to_launch) == 0
    assert f"  program    {sys.executable}\n" in capfd.readouterr().out
