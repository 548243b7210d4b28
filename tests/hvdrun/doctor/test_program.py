"""The command line of `hvdrun doctor`, and what it prints."""

import json
from dataclasses import replace

import pytest

from hvdrun.cli.program import main
from hvdrun.doctor.program import Request, complete, read_request, render, render_json
from hvdrun.doctor.visits import Examination, find_slow, visit
from hvdrun.hosts.findings import Finding, Host
from hvdrun.spec.facts import Facts, Leftover
from hvdrun.version import __version__
from rendezvous.core.model import Host as Slots
from rendezvous.wire.orders import AgentFailed, Examine, Examined, Hello, Order
from tests.hvdrun.played_agent import PlayedAgent
from tests.waiting import in_loop


def read(*words: str) -> Request:
    """What these words ask for."""
    asked = read_request(words)
    assert isinstance(asked, Request)
    return asked


def test_words_of_a_job_name_its_hosts() -> None:
    asked = read("--json", "-np", "3", "-H", "a:2,b:2", "--clean", "python", "train.py", "--json")
    assert (asked.as_json, asked.cleans) == (True, True)
    assert asked.spec.workers.hosts == (Slots("a", 2), Slots("b", 2))
    assert asked.spec.workers.command == ("python", "train.py", "--json")


def test_all_hosts_are_examined_with_all_their_slots() -> None:
    spec = complete(read("-H", "localhost:3,127.0.0.2:2").spec)
    assert spec.workers.hosts == (Slots("localhost", 3), Slots("127.0.0.2", 2))
    assert spec.workers.size == 5


def test_an_elastic_job_is_examined_like_any_other() -> None:
    assert complete(read("-np", "1", "--min-np", "1", "-H", "localhost:3").spec).workers.size == 3


def test_without_words_this_machine_is_examined() -> None:
    assert [host.name for host in read().spec.workers.hosts] == ["localhost"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--jsn"], "there is no option '--jsn': did you mean"),
        (["--wait-for-agents", "-np", "1"], "hvdrun doctor cannot visit hosts whose agents join by themselves"),
    ],
)
def test_wrong_words_are_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_help_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "Usage: hvdrun doctor" in capsys.readouterr().out


class PlayedHost(PlayedAgent):
    """An agent that answers with these facts, or reports that it has failed."""

    def __init__(self, facts: Facts | None = None, *, version: str = __version__, failure: str = "") -> None:
        super().__init__(failure=failure)
        self._facts = facts
        self.outbox.put_nowait(Hello(version))

    def send(self, order: Order) -> None:
        """Answer."""
        super().send(order)
        if isinstance(order, Examine):
            if self._facts is None:
                self.outbox.put_nowait(AgentFailed("the host lacks /proc."))
                self.end()
            else:
                self.outbox.put_nowait(Examined(self._facts.encode()))


async def visit_host(host: PlayedHost, *, cleans: bool = False) -> Examination:
    """Visit it."""
    return await visit(complete(read("-H", "localhost:2").spec), cleans=cleans, reach=lambda *_: host)


@in_loop
async def test_a_visited_host_reports_its_facts_and_is_released() -> None:
    host = PlayedHost(Facts(name="n", memory=1 << 40, clock=0.0))
    found = await visit_host(host, cleans=True)
    assert found.hosts["localhost"].facts.name == "n"
    assert found.hosts["localhost"].slots == 2
    assert "the clock of localhost is" in found.findings[0].what
    assert [order.cleans for order in host.orders if isinstance(order, Examine)] == [True]
    assert not host.is_open


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (PlayedHost(Facts(), failure="its name is unknown."), "its name is unknown"),
        (PlayedHost(Facts(), version="0.0"), "the host 'localhost' has hvdrun 0.0, but this is hvdrun"),
        (PlayedHost(), "the host lacks /proc"),
    ],
    ids=["not reached", "another version", "failed"],
)
@in_loop
async def test_a_host_that_cannot_be_visited_is_a_finding(host: PlayedHost, sentence: str) -> None:
    (finding,) = (await visit_host(host)).findings
    assert finding.what.startswith(sentence)
    assert finding.hosts == ("localhost",)


@pytest.mark.parametrize("is_silent", [False, True])
@in_loop
async def test_a_host_whose_agent_does_not_come_is_a_finding(*, is_silent: bool) -> None:
    host = PlayedAgent(starts=is_silent)  # the agent starts and says nothing, or does not start
    spec = complete(read("-H", "localhost:2", "--start-timeout", "50ms").spec)
    (finding,) = (await visit(spec, reach=lambda *_: host)).findings
    assert finding.what.startswith("the agent on the host 'localhost' did not answer within 0.05 s")


def test_the_slowest_pair_is_found_where_others_are_faster() -> None:
    usual = {(one, other): 0.3 for one in "abc" for other in "abc" if one != other}
    assert find_slow(usual) == []
    (finding,) = find_slow({**usual, ("a", "c"): 40.0})
    assert finding.what == "a takes 40.0 ms to connect to c, and most pairs of hosts 0.3 ms"
    assert find_slow({("a", "b"): 40.0, ("b", "a"): 0.1}) == []


FACTS = Facts(python="3.11.7", packages={"torch": "2.13.0"}, cpus=8, memory=4 << 30, accelerators=2, driver="580.1")
A_HOST = "Python 3.11.7, torch 2.13.0, 8 CPUs, 4.0 GiB of memory free, 2 accelerators (driver 580.1)"
FOUND = Examination(
    {"a": Host(FACTS), "b": Host(replace(FACTS, proxies=("http_proxy",), leftovers=(Leftover(1, "x", 2.0),)))},
    [Finding("one is wrong", ("b",), "mend it"), Finding("another is", ("a",))],
    {("a", "b"): 0.2, ("b", "a"): 0.4},
)


def test_the_page_has_hosts_and_findings_with_their_remedies() -> None:
    assert render(FOUND, cleaned=True).splitlines() == [
        f"a: {A_HOST}",
        f"b: {A_HOST}, a proxy in http_proxy, which hvdrun does not use",
        "2 directions between hosts connect, the slowest in 0.4 ms: b to a",
        "",
        "2 findings:",
        "1. one is wrong",
        "   mend it",
        "2. another is",
        "What earlier jobs had left is removed.",
    ]


def test_the_page_counts_one_accelerator_and_one_finding_in_the_singular() -> None:
    found = Examination({"a": Host(replace(FACTS, cpus=1, accelerators=1))}, [Finding("one is wrong", ("a",))])
    described = "Python 3.11.7, torch 2.13.0, 1 CPU, 4.0 GiB of memory free, 1 accelerator (driver 580.1)"
    assert render(found).splitlines() == [f"a: {described}", "", "1 finding:", "1. one is wrong"]


def test_the_page_of_hosts_that_cannot_be_visited_begins_with_the_findings() -> None:
    assert render(Examination({}, [Finding("it is unknown", ("a",))])) == "1 finding:\n1. it is unknown"


def test_json_has_the_same() -> None:
    found = json.loads(render_json(FOUND))
    assert found["version"] == 1
    assert found["hosts"]["b"]["proxies"] == ["http_proxy"]
    assert found["findings"][0] == {"what": "one is wrong", "hosts": ["b"], "remedy": "mend it"}
    assert found["pairs"][1] == {"from": "b", "to": "a", "milliseconds": 0.4}
