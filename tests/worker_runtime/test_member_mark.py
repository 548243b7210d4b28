"""Who the member is, as the processes that it starts see it."""

import os

import pytest

from worker_runtime.errors import InitializationError
from worker_runtime.member_mark import check_mark, remove_mark, set_mark


def test_a_member_may_join_again_and_another_identity_is_its_own() -> None:
    environment: dict[str, str] = {}
    check_mark(environment, "job 1, slot 2")
    set_mark(environment, "job 1, slot 2", 3)
    check_mark(environment, "job 1, slot 2")
    remove_mark(environment)
    assert environment == {}


def test_a_child_is_refused_until_its_parent_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    set_mark(environment, "job 1, slot 2", 3)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(InitializationError, match=rf"process {parent}, which has started this one, is rank 3 of the"):
        check_mark(environment, "job 1, slot 2")
    check_mark(environment, "job 2, slot 2")  # a job inside the job
    remove_mark(environment)
    assert environment
    monkeypatch.undo()
    remove_mark(environment)
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    check_mark(environment, "job 1, slot 2")
