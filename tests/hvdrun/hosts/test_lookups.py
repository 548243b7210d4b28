"""Names are looked up once each, and those that take long hold nobody up."""

import threading

import pytest

from hvdrun.hosts import lookups as lookups_module
from hvdrun.hosts import reach
from hvdrun.hosts.lookups import Lookups
from hvdrun.spec.hosts import HostList, parse_hosts
from tests.waiting import happen, in_loop


def list_names(listed: HostList) -> list[str]:
    return [host.name for host in listed.hosts]


@in_loop
async def test_a_name_that_no_server_knows_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answered = threading.Event()

    def is_local(name: str) -> bool:
        asked.append(name)
        return name == "here" or (name == "slow" and not answered.wait(60))

    monkeypatch.setattr(reach, "is_local", is_local)
    monkeypatch.setattr(lookups_module, "PATIENCE_SECONDS", 0.05)
    lookups, listed = Lookups(), parse_hosts("slow:1,here:2,there:1")
    try:
        await lookups.find_known(listed)
        await happen(lambda: lookups.pending == ("slow",))
        known = await lookups.find_known(listed)
        assert (list_names(known), lookups.pending) == (["here", "there"], ("slow",))
        assert (lookups.is_local("here"), lookups.is_local("there")) == (True, False)
        answered.set()
        await happen(lambda: not lookups.pending)
        assert list_names(await lookups.find_known(listed)) == ["slow", "here", "there"]
        assert sorted(asked) == ["here", "slow", "there"]
    finally:
        answered.set()
        await lookups.close()
