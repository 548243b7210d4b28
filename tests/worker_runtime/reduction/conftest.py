"""Worlds of threads."""

import pytest

from tests.worker_runtime.threads import World


@pytest.fixture(params=[False, True], ids=["static", "elastic"])
def world(request: pytest.FixtureRequest) -> World:
    """Two ranks, in a job whose workers are never lost, and in one that outlives them."""
    return World(2, is_elastic=request.param)
