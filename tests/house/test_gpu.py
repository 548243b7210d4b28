"""The report of `make gpu`, and the order of its tests."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.house import gpu
from tests.house.gpu import FILES, Recorder, Report, list_files, rank_file, run_tests
from tests.house.gpu_watch import watch
from tests.house.sources import ROOT

MACHINE = {"GPUs": "none", "torch": "2.13.0+cpu"}
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passing(number):
    pass

def test_failing():
    assert False, "of no use"

@pytest.mark.skip(reason="there is no card")
def test_skipped():
    pass
"""
CRASHING = """
import os, pytest, signal
pytestmark = getattr(pytest.mark, "gpu")

@pytest.mark.parametrize("number", range(3))
def test_passing(number):
    pass

def test_failing():
    assert False, "of no use"

@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_ending(name):
    os.kill(os.getpid(), signal.Signals[name])
"""
PROGRAM_OF_PART = """
import sys
from pathlib import Path
from tests.house import gpu

report, page, file, seconds = sys.argv[1:]
gpu.REPORT, gpu.PAGE = Path(report), Path(page)
(found := gpu.Report()).read()
gpu.run_part(found, [file], float(seconds))
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr(gpu, "PAGE", tmp_path / "report.txt")


def run(folder: Path, *times: float, tests: str = TESTS) -> Report:
    """Run the tests, where the clock shows these times."""
    report, clock = Report(machine=MACHINE), iter((0.0, *times, *[times[-1] if times else 0.0] * 10))
    file = folder / f"{folder.name}.py"
    file.write_text(tests, encoding="utf-8")
    options = ["-q", "-c", os.devnull, f"--rootdir={folder}", *("-p", "no:cacheprovider", "-p", "no:faulthandler")]
    options.append("--import-mode=importlib")
    pytest.main([*options, str(file)], plugins=[Recorder(report, lambda: next(clock), 60.0)])
    report.write()
    return report


def test_the_page_counts_tests_and_shows_failures(tmp_path: Path) -> None:
    report = run(tmp_path)
    assert (report.passed, len(report.failed), report.skipped) == (3, 1, {"there is no card": 1})
    page = gpu.PAGE.read_text(encoding="utf-8").splitlines()
    assert page[:4] == [
        "GPUs        none",
        "torch       2.13.0+cpu",
        "tests       3 passed, 1 failed, 1 skipped",
        "    1 skipped: there is no card",
    ]
    assert any("of no use" in line for line in page)
    assert list(json.loads(gpu.REPORT.read_text(encoding="utf-8"))["failed"]) == list(report.failed)


def test_a_failure_has_the_error_output_before_its_last_lines(tmp_path: Path) -> None:
    report = run(tmp_path, tests="def test_it():\n    import os; os.write(2, b'a stack'); assert False, 'of no use'")
    (text,) = report.failed.values()
    assert text.index("a stack") < text.index("of no use")


def test_the_page_says_where_evidence_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "EVIDENCE", tmp_path)
    assert f"evidence    {tmp_path}" in Report(machine=MACHINE).make_page().splitlines()


def test_a_file_that_cannot_be_imported_counts_as_failed(tmp_path: Path) -> None:
    assert list(run(tmp_path, tests="import no_such_module").failed) == [f"{tmp_path.name}.py"]


def test_a_file_that_lacks_a_package_is_reported_with_its_name(tmp_path: Path) -> None:
    report = run(tmp_path, tests="import pytest\npytest.importorskip('no_such_module')\n")
    assert report.skipped == {"could not import 'no_such_module': No module named 'no_such_module'": 1}
    assert not report.failed


def test_without_a_gpu_the_page_says_that_nothing_ran() -> None:
    assert Report(machine=MACHINE, skipped={"there is no CUDA device": 9}).make_page().splitlines()[2:] == [
        "tests       0 run, 9 skipped",
        "    9 skipped: there is no CUDA device",
    ]


@pytest.mark.parametrize("end", ["pass", "pytest.skip('it refuses')", "assert False"])
def test_the_page_says_first_what_carries_tensors(tmp_path: Path, end: str) -> None:
    reported = f"def test_it(record_property):\n    record_property('{gpu.TRANSPORT}', 'gloo alone')\n    {end}\n"
    report = run(tmp_path, tests=f"import pytest\n{reported}\ndef test_another():\n    pass\n")
    assert report.make_page().splitlines()[0] == "transport   gloo alone"


def test_no_test_begins_when_the_time_is_over(tmp_path: Path) -> None:
    report = run(tmp_path, 61.0)
    assert report.passed + len(report.failed) + sum(report.skipped.values()) == 1
    assert report.is_cut
    assert "not all were tried" in report.make_page()


def test_the_report_is_there_before_the_run_ends(tmp_path: Path) -> None:
    report = run(tmp_path, tests=f"def test_it():\n    import os; assert os.path.exists({str(gpu.REPORT)!r})")
    assert report.passed == 1, report.failed


def test_the_tests_of_transport_come_first_and_every_named_file_exists() -> None:
    files = sorted(list_files(), key=rank_file)
    assert files[0] == FILES[0]
    for prefix in FILES:
        path, _, test = prefix.partition("::")
        assert any(file.startswith(path) for file in files), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_a_test_takes_precedence_over_its_file() -> None:
    (one,) = (each for each in FILES if "::" in each)
    assert rank_file(f"{one}[nccl]") < rank_file(one.partition("::")[0])


def test_a_test_that_ends_the_process_fails_and_the_others_run(tmp_path: Path) -> None:
    file = tmp_path / "test_crashing.py"
    file.write_text(CRASHING, encoding="utf-8")
    report = Report(machine=MACHINE)
    run_tests(report, [sys.executable, "-c", PROGRAM_OF_PART, *map(str, (gpu.REPORT, gpu.PAGE, file))])
    failed = {name.partition("::")[2]: text for name, text in report.failed.items()}
    assert "of no use" in failed.pop("test_failing")
    assert failed == {
        f"test_ending[{name}]": f"it ended the process of the tests with {name}" for name in ("SIGSEGV", "SIGKILL")
    }
    assert (report.passed, len(report.tried), report.running) == (3, 6, "")
    assert "3 passed, 3 failed, 0 skipped" in gpu.PAGE.read_text(encoding="utf-8")


def test_a_process_that_hangs_is_ended() -> None:
    Report(machine=MACHINE).write()
    assert "it did not end within" in watch(
        [sys.executable, "-c", "import time; time.sleep(600)"], gpu.REPORT, time.monotonic()
    )


def test_the_page_shows_which_test_runs() -> None:
    page = Report(machine=MACHINE, running="tests/test_it.py::test_it").make_page()
    assert "runs        tests/test_it.py::test_it" in page.splitlines()
