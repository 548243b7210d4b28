"""What an agent says when its host lacks a resource, or when it has a bug."""

import re
from pathlib import Path

import pytest

from rendezvous.wire import codec
from rendezvous.wire.orders import AgentFailed, Output, Release
from tests.hvdrun.agent.jobs import LAUNCH
from tests.hvdrun.agent.test_main import Conversation, describe, run_agent, start_agent

WITHOUT_FOLDER = """
import sys
from pathlib import Path
from hvdrun.agent import __main__, agent
agent.choose_folder = lambda _: Path("/dev/null/hvdrun")
sys.exit(__main__.main())
"""
WITHOUT_WATCHDOG = """
import sys
from hvdrun.agent import __main__
sys.executable = "/no/such/python"
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        (WITHOUT_FOLDER, "create its folder /dev/null/hvdrun: Not a directory"),
        (WITHOUT_WATCHDOG, "start its watchdog: No such file or directory"),
    ],
)
def test_an_agent_without_resources_says_so_in_one_sentence(program: str, failure: str, tmp_path: Path) -> None:
    orders = codec.encode_order(describe(tmp_path)) + codec.encode_order(Release())
    returncode, _, errors = run_agent(orders, tmp_path, "-c", program)
    assert returncode == 1
    assert re.fullmatch(rf"the agent on 'a' cannot {failure}\. Free space .* files\.\n", errors)


FAILS_AT_LAST = """
import sys
from hvdrun.agent import __main__
from hvdrun.processes.reaper import Reaper
Reaper._look = lambda _: 1 / 0
sys.exit(__main__.main())
"""


def test_an_agent_reports_an_unexpected_error_of_its_cleanup(tmp_path: Path) -> None:
    with start_agent(tmp_path, "-c", FAILS_AT_LAST) as agent:
        conversation = Conversation(agent)
        conversation.begin(tmp_path)
        conversation.send(LAUNCH)
        while not isinstance(conversation.receive(), Output):
            pass
        conversation.send(Release())
        while not isinstance(failed := conversation.receive(), AgentFailed):
            pass
        assert ", in _run" in failed.traceback
        assert "ZeroDivisionError" in conversation.end()
