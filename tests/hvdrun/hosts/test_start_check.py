"""The short examination at the start of a job: each finding is printed once, when all hosts have answered."""

import time
from dataclasses import replace
from pathlib import Path

from hvdrun.hosts.start_check import StartCheck
from hvdrun.spec.facts import Facts
from rendezvous.core.model import Host
from rendezvous.wire.orders import Examine, Order
from tests.hvdrun.specs import build_spec

PIP = "python -m pip install torch==2.13.0"


class Scene:
    """A job on two hosts."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, Order]] = []
        self.notices: list[str] = []
        spec = build_spec(command=("true",), size=2, hosts=(Host("a", 1), Host("b", 1)), directory=Path("/work"))
        self.check = StartCheck(spec, lambda host, order: self.orders.append((host, order)), self.notices.append)

    def answer(self, host: str, torch: str, **changes: object) -> None:
        """The host has this version of torch."""
        facts = replace(Facts(packages={"torch": torch}, clock=time.time()), **changes)  # type: ignore[arg-type]  # any field
        self.check.note(host, facts.encode())


def test_hosts_are_asked_only_for_quick_checks() -> None:
    scene = Scene()
    scene.check.ask("a")
    ((host, order),) = scene.orders
    assert host == "a"
    assert isinstance(order, Examine)
    assert order.is_short
    assert not order.cleans


def test_findings_follow_the_last_answer() -> None:
    scene = Scene()
    for host in "ab":
        scene.check.ask(host)
    scene.answer("b", "2.12.0")
    assert scene.notices == []
    scene.answer("a", "2.13.0")
    assert scene.notices == [f"torch 2.12.0 on b, but 2.13.0 on a: {PIP}"]


def test_a_finding_is_printed_once_though_another_host_comes() -> None:
    scene = Scene()
    for host, torch in (("a", "2.13.0"), ("b", "2.12.0"), ("c", "2.13.0")):
        scene.check.ask(host)
        scene.answer(host, torch)
    assert scene.notices == [f"torch 2.12.0 on b, but 2.13.0 on a: {PIP}"]


def test_a_lost_host_is_not_waited_for() -> None:
    scene = Scene()
    for host in "abc":
        scene.check.ask(host)
    scene.answer("a", "2.13.0")
    scene.check.forget("c")
    scene.answer("b", "2.13.0", python="3.11.1")
    scene.answer("c", "1.0")
    assert scene.notices == []


def test_findings_follow_the_loss_of_the_last_host_that_is_awaited() -> None:
    scene = Scene()
    for host in "abc":
        scene.check.ask(host)
    scene.answer("a", "2.13.0")
    scene.answer("b", "2.12.0")
    assert scene.notices == []
    scene.check.forget("c")
    assert scene.notices == [f"torch 2.12.0 on b, but 2.13.0 on a: {PIP}"]


def test_faults_that_a_job_may_live_with_are_left_out() -> None:
    scene = Scene()
    scene.check.ask("a")
    scene.answer("a", "2.13.0", memory=1, files=7, accelerators=0, knows_name=False)
    assert scene.notices == []
