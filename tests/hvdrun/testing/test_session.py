"""What a marker asks for, and what it may not."""

import os
import pickle
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest

from hvdrun.cluster.cluster import Answers
from hvdrun.cluster.errors import RemoteError
from hvdrun.tasks.messages import INLINE_BYTES, Body, Delivered
from hvdrun.testing.rank import Place, RankFailedError, RankOutcome, RankReport, Style, run_test
from hvdrun.testing.session import (
    DebuggedError,
    GroupResult,
    decide,
    describe_place,
    explain_unsendable,
    make_cluster,
    make_error,
    make_result,
    read_style,
)


def test_a_fixture_of_a_dtype_that_torch_pickles_badly_can_be_sent() -> None:
    torch = pytest.importorskip("torch")
    item: Any = SimpleNamespace(obj=read_style, name="test")
    assert explain_unsendable(item, {"weight": torch.ones(2, dtype=torch.uint16)}) is None


@pytest.mark.parametrize(("options", "size"), [({}, 2), ({"np": 3}, 3), ({"num_proc": 3}, 3), ({"verbose": True}, 2)])
def test_a_marker_names_the_options_of_a_cluster(options: dict[str, object], size: int) -> None:
    assert make_cluster(options).size == size


@pytest.mark.parametrize(("options", "says"), [({"npp": 2}, "did you mean 'np'"), ({"np": 0}, "hvdrun")])
def test_a_marker_that_asks_for_the_impossible_fails_the_test(options: dict[str, object], says: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=says):
        make_cluster(options)


def test_the_style_of_tracebacks_is_that_of_pytest() -> None:
    assert [read_style(name) for name in ("auto", "line", "short", "no")] == ["long", "short", "short", "no"]


STYLE = Style("short", shows_locals=False)
P, F, S, X = RankOutcome.PASSED, RankOutcome.FAILED, RankOutcome.SKIPPED, RankOutcome.XFAILED


@pytest.mark.parametrize(
    ("outcomes", "decides"),
    [([P, P], None), ([S, P], None), ([S, S], 0), ([P, F], 1), ([S, F], 1), ([X, P], 0), ([X, F], 1), ([F, F], 0)],
)
def test_the_first_failure_decides_and_a_skip_only_when_all_skip(
    outcomes: list[RankOutcome], decides: int | None
) -> None:
    reports = [RankReport(rank, outcome) for rank, outcome in enumerate(outcomes)]
    found = decide(reports, len(reports))
    assert (found and found.rank) == decides


def test_each_rank_is_reported_with_its_place() -> None:
    assert describe_place(RankReport(0, place=Place("test_a.py", 3))) == "returned from the test at test_a.py:3"
    assert (
        describe_place(RankReport(1, F, "ValueError: bad\nmore", Place("test_a.py", 4)))
        == "failed at test_a.py:4: ValueError: bad"
    )


def test_a_rank_reports_what_its_test_has_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("bad")

    monkeypatch.setenv("HOROVOD_RANK", "1")
    with pytest.raises(RankFailedError) as caught:
        run_test(fail, {}, STYLE)
    report = caught.value.report
    assert (report.rank, report.outcome, report.summary) == (1, F, "ValueError: bad")
    error = make_error(report)
    assert isinstance(error, ValueError)
    with pytest.raises(ValueError, match="bad"):
        GroupResult([report], report).announce()


def test_an_exception_with_a_tensor_that_torch_pickles_badly_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def fail() -> None:
        raise ValueError("bad", torch.tensor([1, 65535], dtype=torch.uint16))

    monkeypatch.setenv("HOROVOD_RANK", "1")
    with pytest.raises(RankFailedError) as caught:
        run_test(fail, {}, STYLE)
    error = make_error(caught.value.report)
    assert isinstance(error, ValueError)
    assert error.args[1].tolist() == [1, 65535]


@pytest.mark.parametrize(
    ("rank", "terminal", "says"),
    [
        ("1", "/dev/tty", "--pdb stops on rank 0 only"),
        ("0", None, "--pdb needs pytest's terminal, and there is none"),
        ("0", "/nowhere", "--pdb: rank 0 cannot use the terminal /nowhere: No such file or directory"),
    ],
)
def test_a_debugger_that_cannot_open_says_why_and_pytest_opens_no_other(
    monkeypatch: pytest.MonkeyPatch, rank: str, terminal: str | None, says: str
) -> None:
    def fail() -> None:
        raise ValueError("bad\nmore")

    monkeypatch.setenv("HOROVOD_RANK", rank)
    with pytest.raises(RankFailedError) as caught:
        run_test(fail, {}, Style("short", shows_locals=False, terminal=terminal, uses_pdb=True))
    assert caught.value.report.summary == f"ValueError: bad ({says})\nmore"
    assert isinstance(make_error(caught.value.report), DebuggedError)


def test_a_rank_that_skips_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "0")
    report = run_test(pytest.skip, {"reason": "no GPU"}, STYLE)
    assert (report.outcome, report.summary) == (S, "no GPU")
    with pytest.raises(pytest.skip.Exception, match="no GPU"):
        GroupResult([report], report).announce()


def test_a_report_that_cannot_be_read_leaves_no_other_open() -> None:
    with TemporaryFile() as file:
        pickle.dump(bytes(INLINE_BYTES), file)
        large = Body.of(file)
    assert large.descriptor is not None
    bodies = Body(b"no pickle"), large
    delivered = [Delivered(rank, 1, failed=False, follows_another=False, body=body) for rank, body in enumerate(bodies)]
    with pytest.raises(RemoteError):
        make_result(Answers(delivered), 2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(large.descriptor)
