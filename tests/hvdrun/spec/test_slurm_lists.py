"""Slurm's short forms, as its own tools write them."""

import pytest

from hvdrun.spec.slurm_lists import expand_counts, expand_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", "login"),
        ("n1,n2", "n1 n2"),
        ("n[1-3,07],login", "n1 n2 n3 n07 login"),
        ("gpu-[08-10].site", "gpu-08.site gpu-09.site gpu-10.site"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("n[99-101]", "n99 n100 n101"),
        ("n[099-101]", "n099 n100 n101"),
    ],
)
def test_a_list_of_hosts_is_expanded_in_its_order(text: str, names: str) -> None:
    assert expand_hosts(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["", "n[1-", "n]", "n[]", "n[1,]", "n[2-1]", "n[a-b]", "a,,b", "[1-9999][1-9999]"])
def test_a_wrong_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no list of Slurm's"):
        expand_hosts(text)


def test_counts_are_expanded() -> None:
    assert expand_counts("2(x3),1") == (2, 2, 2, 1)
    assert expand_counts("16") == (16,)


@pytest.mark.parametrize("text", ["", "2(3)", "x", "2,", "1(x9999999)"])
def test_a_wrong_list_of_counts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no list of Slurm's"):
        expand_counts(text)
