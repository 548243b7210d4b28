"""The processes that play ranks in tests."""

import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT
from tests.waiting import wait_until

BLOCKS = """
import time
from tests.worker_runtime.ranks import Ranks

def block():
    import os
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)

Ranks(1).run(block, size=1)
"""


def test_a_rank_that_blocks_ends_with_the_tests() -> None:
    with subprocess.Popen([sys.executable, "-c", BLOCKS], cwd=ROOT, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        rank = Path("/proc") / tests.stdout.readline().decode().strip()
        assert rank.exists()
        tests.kill()
    wait_until(lambda: not rank.exists(), "the end of the rank")
