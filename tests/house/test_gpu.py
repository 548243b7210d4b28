"""The page of `make gpu`."""

from tests.house.gpu import Counts, make_page, read_counts

MACHINE = {"GPUs": "none", "driver": "none", "torch": "2.13.0+cpu", "NCCL": "none"}


def test_without_a_gpu_the_page_says_that_nothing_ran() -> None:
    report = '<testsuites><testsuite tests="9" failures="0" errors="0" skipped="9"/></testsuites>'
    page = make_page(MACHINE, read_counts(report), "not measured: there is no GPU").splitlines()
    assert page[-2:] == ["tests       0 run, 9 skipped", "bandwidth   not measured: there is no GPU"]
    assert "torch       2.13.0+cpu" in page


def test_what_passed_and_failed_is_counted() -> None:
    report = '<testsuites><testsuite tests="9" failures="2" errors="1" skipped="1"/></testsuites>'
    assert read_counts(report) == Counts(5, 3, 1)
    assert str(Counts(5, 3, 1)) == "5 passed, 3 failed, 1 skipped"
