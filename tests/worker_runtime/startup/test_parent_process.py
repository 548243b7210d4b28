"""The end of a process that another process owns."""

import errno
import os
import subprocess
import threading
from unittest.mock import Mock

import pytest

from tests.waiting import LIMIT_SECONDS
from worker_runtime.startup.parent_process import wait_for_end


@pytest.mark.parametrize("error", [None, AttributeError(), OSError(errno.ENOSYS, ""), OSError(errno.EPERM, "")])
def test_the_end_of_a_process_is_noticed_before_it_is_reaped(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is not None:  # what Pythons, kernels and containers without pidfds say
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=error))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        waiting = threading.Thread(target=wait_for_end, args=(process.pid,), daemon=True)
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive()
        process.stdin.close()
        waiting.join(LIMIT_SECONDS)
        assert not waiting.is_alive()
    wait_for_end(process.pid)  # of which nothing is left
