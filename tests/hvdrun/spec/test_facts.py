"""The facts about a host travel as JSON."""

from hvdrun.spec.facts import Facts, Leftover

FACTS = Facts(
    name="node",
    packages={"torch": "2.13.0"},
    busy={"0": 7},
    free={"/work": 1},
    proxies=("http_proxy",),
    unreadable=("/secret",),
    leftovers=(Leftover(7, "python train.py", 1.5),),
    folders=("/a", "/b"),
)


def test_facts_arrive_as_they_were() -> None:
    assert Facts.decode(FACTS.encode()) == FACTS


def test_facts_of_another_version_are_read_as_far_as_they_are_known() -> None:
    assert Facts.decode('{"name": "n", "of a later version": 1}') == Facts("n")
