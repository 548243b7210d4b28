"""The words of `hvdrun agent`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.options.programs import read_agent
from rendezvous.core.model import Endpoint

AGENT = ("--join", "10.0.0.1:7", "--token-file", "t")


def test_an_agents_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert read_agent([*AGENT, "--slots", "4"]) == {
        "place": Endpoint("10.0.0.1", 7),
        "token_file": Path("t"),
        "slots": 4,
        "name": "node7",
        "join_timeout": None,
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "hvdrun agent lacks --join: copy the line that hvdrun --wait-for-agents prints"),
        (("--join", "10.0.0.1:7"), "hvdrun agent lacks --token-file"),
        (("--join", "10.0.0.1"), "--join takes an address and a port, as in --join 10.0.0.1:29400, not '10.0.0.1'"),
        ((*AGENT, "--slots", "0"), "--slots takes a number of slots from 1 to 65536"),
        ((*AGENT, "--speed"), "No such option '--speed': hvdrun agent --help lists its options."),
        ((*AGENT, "--name", "a b"), "a host cannot be called 'a b'"),
    ],
)
def test_wrong_words_of_an_agent_are_refused(
    words: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", *words]) == 2
    assert sentence in capsys.readouterr().err
