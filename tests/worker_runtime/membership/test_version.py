"""A worker belongs to a job of its own version only."""

import re

import pytest

from hvdrun.version import __version__
from worker_runtime.errors import InitializationError, WorkerVersionError
from worker_runtime.membership.runtime import Runtime
from worker_runtime.membership.version import OWN_VERSION, check_version


def test_launcher_and_workers_have_one_version() -> None:
    assert __version__ == OWN_VERSION
    check_version({"HVD_VERSION": __version__})
    check_version({})


def test_a_worker_of_another_version_than_its_agent_is_refused() -> None:
    def connect(_: object) -> object:
        raise AssertionError("it may not join")

    sentence = (
        f"this worker imports hvdrun {re.escape(OWN_VERSION)}, and its job runs with hvdrun 99.0: install that again"
    )
    with pytest.raises(WorkerVersionError, match=sentence) as refused:
        Runtime(connect).init({"HVD_VERSION": "99.0"})  # type: ignore[arg-type]  # it connects to nothing
    assert isinstance(refused.value, InitializationError)
