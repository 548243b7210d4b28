"""Where the shim lies, and what PYTHONPATH becomes."""

import os

import pytest

from hvdrun.shim.path import FOLDER, VARIABLE, ShimMode, prepend_shim

OURS = os.fsencode(FOLDER)
LEADS = [(None, OURS), (b"", OURS), (b"/a", OURS + b":/a"), (b"/a::/b\xff", OURS + b":/a::/b\xff")]


def search(mode: str, own: bytes | None) -> bytes | None:
    """What PYTHONPATH becomes."""
    environment = {VARIABLE: mode.encode()} | ({} if own is None else {b"PYTHONPATH": own})
    led = prepend_shim(environment)
    assert {**led, b"PYTHONPATH": own} == {**environment, b"PYTHONPATH": own}, "another variable has changed"
    return led.get(b"PYTHONPATH")


def test_the_folder_holds_horovod_and_what_runs_at_a_start() -> None:
    assert {path.name for path in FOLDER.iterdir()} - {"__pycache__"} == {"horovod", "sitecustomize.py"}
    assert (FOLDER / "horovod" / "__init__.py").exists()


@pytest.mark.parametrize("mode", [ShimMode.AUTO, ShimMode.ON])
@pytest.mark.parametrize(("own", "led"), LEADS)
def test_the_folder_comes_first_and_the_users_own_is_kept(mode: str, own: bytes | None, led: bytes) -> None:
    assert search(mode, own) == led


@pytest.mark.parametrize("own", [None, b"", b"/a", b"/a::/b"])
def test_the_mode_off_does_not_change_the_path(own: bytes | None) -> None:
    assert search(ShimMode.OFF, own) == own


def test_the_path_of_a_nested_job_has_the_folder_at_most_once() -> None:
    assert search(ShimMode.AUTO, OURS + b":/a") == OURS + b":/a"
    assert search(ShimMode.ON, OURS) == OURS
    assert search(ShimMode.OFF, OURS + b":/a") == b"/a"
    assert search(ShimMode.OFF, OURS) is None


def test_a_job_without_a_request_gets_no_path() -> None:
    assert prepend_shim({b"PYTHONPATH": b"/a"}) == {b"PYTHONPATH": b"/a"}
