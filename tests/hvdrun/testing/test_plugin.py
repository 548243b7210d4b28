"""What users of the pytest plugin see: one run of pytest over a test for each fact, and that of the docs."""

from pathlib import Path

import pytest

from hvdrun.testing import plugin
from tests.documentation import find_blocks, read
from tests.hvdrun.testing.suite import Suite, run_suite

pytestmark = pytest.mark.system

TESTS = """
import os, threading, unittest, warnings
import hypothesis, pytest, torch
import worker_runtime.torch as hvd

LOCK = threading.Lock()

@pytest.fixture(params=[1, 3])
def factor(request): return request.param

@pytest.fixture
def lock(): return [threading.Lock()]

@pytest.mark.hvdrun(np=2)
def test_arrives(factor, tmp_path):
    hvd.init()
    assert hvd.allreduce(torch.tensor(1.0) * factor, op=hvd.Sum).item() == 2 * factor
    (tmp_path / str(hvd.rank())).touch()

@pytest.mark.hvdrun
def test_of_default_size(monkeypatch):
    hvd.init()
    assert hvd.size() == 2
    monkeypatch.setenv("SET_BY_A_TEST", "1")

@pytest.mark.hvdrun
def test_patch_is_undone(): assert "SET_BY_A_TEST" not in os.environ

def test_unmarked(capsys): assert "HOROVOD_RANK" not in os.environ

@pytest.mark.hvdrun
def test_fixture(lock): pass

@pytest.mark.hvdrun
def test_global(): LOCK.acquire()

@pytest.mark.hvdrun
def test_capsys(capsys): pass

@pytest.mark.hvdrun
def test_assertion():
    hvd.init()
    if hvd.rank() == 0:
        hvd.barrier()  # waits for rank 1
    print("printed on", hvd.rank())
    assert hvd.rank() + 1 == 7  # the cause

@pytest.mark.hvdrun
def test_lists(): assert [1, 2, "100%"] == [1, 2, "101%"]

@pytest.mark.hvdrun
@hypothesis.given(hypothesis.strategies.integers())
def test_drawn(number): pass

@pytest.mark.hvdrun
def test_breakpoint():
    breakpoint()
    assert os.environ["HOROVOD_RANK"] != "0", "unreachable"

@pytest.mark.hvdrun
def test_skip_all(): pytest.skip("no reason")

@pytest.mark.hvdrun
def test_skip_one():
    hvd.init()
    if hvd.rank() == 1: pytest.skip("rank 0 alone")

@pytest.mark.hvdrun
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_xfail(): 1 / 0

@pytest.mark.hvdrun
@pytest.mark.xfail(strict=True)
def test_xpass(): pass

@pytest.mark.hvdrun
def test_warning(): warnings.warn("an old thing", DeprecationWarning)

@pytest.mark.hvdrun
@pytest.mark.filterwarnings("error")
def test_warning_is_error(): warnings.warn("a bad thing")

@pytest.mark.hvdrun
def test_death():
    hvd.init()
    if hvd.rank() == 1: os._exit(3)
    hvd.barrier()

class TestMethods:
    @pytest.mark.hvdrun(np=2)
    def test_method(self): pass

@pytest.mark.hvdrun(npp=2)
def test_keyword(): pass

@pytest.mark.hvdrun
async def test_async(): pass

class TestCases(unittest.TestCase):
    @pytest.mark.hvdrun
    def test_case(self): pass
"""
# The test that the page of pytest shows.
(SHOWN,) = (block for block in find_blocks(read(), "python") if "import pytest" in block)
OUTCOMES = {
    "test_the_average_is_that_of_both_ranks": "passed",
    "test_arrives[1]": "passed",
    "test_arrives[3]": "passed",
    "test_of_default_size": "passed",
    "test_patch_is_undone": "passed",
    "test_unmarked": "passed",
    "test_skip_one": "passed",
    "test_warning": "passed",
    "test_method": "passed",
    "test_skip_all": "skipped",
    "test_xfail": "skipped",
    "test_fixture": "failure",
    "test_global": "failure",
    "test_capsys": "failure",
    "test_assertion": "failure",
    "test_lists": "failure",
    "test_breakpoint": "failure",
    "test_xpass": "failure",
    "test_warning_is_error": "failure",
    "test_death": "failure",
    "test_keyword": "failure",
    "test_async": "error",
    "test_drawn": "error",
    "test_case": "error",
}


def find_line(text: str) -> int:
    """The line of the file of tests that holds this text."""
    return next(number for number, line in enumerate(TESTS.splitlines(), 1) if text in line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the file of tests stands, and that of the documentation."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_shown.py").write_text(SHOWN)
    (folder / "test_ranks.py").write_text(TESTS)
    return folder


@pytest.fixture(scope="module")
def suite(folder: Path) -> Suite:
    """What became of the tests."""
    return run_suite(folder, ["-rA", "--strict-markers", "-W", "ignore::pytest.PytestUnknownMarkWarning"])


def test_each_test_has_the_outcome_that_it_has_on_one_process(suite: Suite) -> None:
    assert suite.outcomes == OUTCOMES, suite.output


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_fixture", "the fixture 'lock' cannot be sent to another process: its item 0 is a _thread.lock"),
        ("test_global", "test_global cannot be sent to another process: its global variable `LOCK` is a _thread.lock"),
        ("test_capsys", "the fixture 'capsys' works in pytest's own process"),
        ("test_assertion", "assert (1 + 1) == 7"),
        ("test_assertion", f"rank 0 failed at test_ranks.py:{find_line('waits for rank 1')}: "),
        ("test_assertion", f"rank 1 failed at test_ranks.py:{find_line('the cause')}: "),
        ("test_lists", "At index 2 diff: '100%' != '101%'"),
        ("test_breakpoint", "breakpoint() needs pytest's terminal, and rank 0 has none: run pytest at a"),
        ("test_drawn", "@given would draw other values on each rank"),
        ("test_skip_all", f"test_ranks.py:{find_line('no reason')}: no reason"),
        ("test_warning_is_error", "UserWarning: a bad thing"),
        ("test_death", "rank 1 (localhost:1) failed with exit code 3"),
        ("test_keyword", "there is no keyword 'npp': did you mean 'np'?"),
        ("test_async", "@pytest.mark.hvdrun is for test functions"),
    ],
)
def test_a_test_that_does_not_pass_says_why(suite: Suite, name: str, says: str) -> None:
    assert says in suite.texts[name], suite.output


def test_a_warning_is_shown_once_and_not_for_each_rank(suite: Suite) -> None:
    assert suite.output.count("DeprecationWarning: an old thing") == 1


def test_output_of_the_ranks_is_captured(suite: Suite) -> None:
    assert "Captured stdout call" in suite.output
    assert "[1] printed on 1" in suite.output


def test_frames_of_hvdrun_are_left_out(suite: Suite) -> None:
    assert "worker_runtime/" not in suite.texts["test_assertion"]


@pytest.mark.nightly
@pytest.mark.parametrize("words", [["-n", "2"], ["-s", "--import-mode=importlib"]], ids=["xdist", "no capture"])
def test_outcomes_are_the_same_under_the_options_of_pytest(folder: Path, words: list[str]) -> None:
    suite = run_suite(folder, words)
    assert suite.outcomes == OUTCOMES, suite.output


def test_x_ends_the_run_at_the_first_failure(tmp_path: Path) -> None:
    body = "def test_{}(): assert 0\n"
    (tmp_path / "test_two.py").write_text(
        "import pytest\npytestmark = pytest.mark.hvdrun(np=2, no_prefork=True)\n" + body.format("a") + body.format("b")
    )
    assert run_suite(tmp_path, ["-x"]).outcomes == {"test_a": "failure"}


def test_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_traced.py").write_text("import pytest\n@pytest.mark.hvdrun\ndef test_a(): pass\n")
    assert "--trace does not work on the ranks of a test" in run_suite(tmp_path, ["--trace"]).texts["test_a"]


def test_the_plugin_is_found_by_its_entry_point(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin("hvdrun") is plugin
