"""The command lines of `hvdrun agent` and `hvdrun token`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.options.programs import AGENT, TOKEN, read_agent, read_token
from rendezvous.core.model import Endpoint

JOIN = ("--join", "10.0.0.1:7", "--token-file", "t")


def test_an_agents_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert read_agent(AGENT.parse([*JOIN, "--slots=4"])) == {
        "endpoint": Endpoint("10.0.0.1", 7),
        "token_file": Path("t"),
        "slots": 4,
        "name": "node7",
        "join_timeout": None,
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--join is missing: copy the line that hvdrun --wait-for-agents prints"),
        (("--join", "10.0.0.1:7"), "--token-file is missing"),
        (("--join", "10.0.0.1"), "--join takes an address and a port, as in --join 10.0.0.1:29400, not '10.0.0.1'"),
        (("--join", "a..b:7"), "--join takes an address and a port, as in --join 10.0.0.1:29400, not 'a..b:7'"),
        (("--join", f"{'a' * 64}:7"), "--join takes an address and a port"),
        ((*JOIN, "--slots", "0"), "--slots takes a number of slots from 1 to 65536"),
        ((*JOIN, "--speed"), "there is no option '--speed': hvdrun agent --help lists its options."),
        ((*JOIN, "--slot", "1"), "there is no option '--slot': did you mean --slots?"),
        ((*JOIN, "--slots"), "--slots lacks its value: it takes a number of slots from 1 to 65536, as in --slots 4."),
        ((*JOIN, "true"), "'true' is one argument too many: hvdrun agent --help lists its options."),
        ((*JOIN, "--name", "a b"), "a host cannot be called 'a b'"),
    ],
)
def test_wrong_words_of_an_agent_are_refused(
    words: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [("t", "--lifetime", "1h"), ("--lifetime", "1h", "t"), ("--lifetime=1h", "--", "t")])
def test_options_of_a_token_stand_before_or_after_its_file(words: Sequence[str]) -> None:
    assert read_token(TOKEN.parse(words)) == {"lifetime": 3600.0, "file": Path("t")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "FILE, the file to write, is missing: hvdrun token --help lists its options."),
        (("a", "b"), "'b' is one argument too many: hvdrun token --help lists its options."),
        (
            ("a", "--lifetime", "0"),
            "--lifetime takes a time longer than 0 and up to 8784h, in ms, s, m or h, as in --lifetime 30s, not '0'",
        ),
    ],
)
def test_wrong_words_of_a_token_are_refused(
    words: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", *words]) == 2
    assert sentence in capsys.readouterr().err
