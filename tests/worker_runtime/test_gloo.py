"""gloo's groups: what they use, and what becomes of those who do not come."""

import time
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from worker_runtime.gloo import Gloo


def test_members_that_do_not_come_are_waited_for_no_longer_than_the_limit() -> None:
    gloo = Gloo(HashStore(), "127.0.0.1", 0, timedelta(minutes=1))
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        gloo.make("set", 0, 2, "cpu", timedelta(seconds=0.5))
    assert time.monotonic() - began < 10


def test_an_address_of_no_interface_is_an_error() -> None:
    gloo = Gloo(HashStore(), "192.0.2.1", 0, timedelta(minutes=1))
    with pytest.raises(RuntimeError):
        gloo.make("set", 0, 2, "cpu", timedelta(seconds=0.5))
