"""A table does what a dict does, and its former versions stay."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core.table import WIDTH, Table

DEPTHS = [0, 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 1, 3 * WIDTH**2 + 7]


@pytest.mark.parametrize("size", DEPTHS)
def test_a_table_of_any_depth_holds_what_a_dict_holds(size: int) -> None:
    wanted = {f"key {number}": number * 10 for number in range(size)}
    table = Table.of(wanted.items())
    assert dict(table.items()) == wanted
    assert {key: table[key] for key in table} == wanted
    assert list(table.values()) == list(wanted.values())
    assert len(table) == size


@given(st.integers(1, 2000), st.lists(st.tuples(st.integers(0, 1999), st.integers()), max_size=20))
def test_a_replaced_entry_is_in_the_new_table_alone_as_in_a_copied_dict(
    size: int, changes: list[tuple[int, int]]
) -> None:
    wanted = dict.fromkeys(range(size), 0)
    table = Table.of(wanted.items())
    for key, value in changes:
        before, known = table, dict(table.items())
        table = table.replace(key % size, value)
        wanted[key % size] = value
        assert dict(before.items()) == known
    assert dict(table.items()) == wanted
    assert table == Table.of(wanted.items())


def test_an_unknown_key_has_no_value() -> None:
    table = Table.of([("a", 1)])
    assert table.get("a") == 1
    assert table.get("b") is None
    assert "b" not in table
    with pytest.raises(KeyError):
        table["b"]
    with pytest.raises(KeyError):
        table.replace("b", 2)


def test_a_change_copies_one_path_and_shares_the_rest() -> None:
    table = Table.of((number, number) for number in range(WIDTH**2))
    changed = table.replace(0, -1)
    shared = [one is other for one, other in zip(table._root, changed._root, strict=True)]
    assert shared == [False] + [True] * (WIDTH - 1)


def test_a_deep_copy_is_equal() -> None:
    table = Table.of((number, [number]) for number in range(100))
    assert copy.deepcopy(table) == table


@given(st.integers(1, 2000), st.sets(st.integers(0, 1999), max_size=20))
def test_the_changes_between_two_versions_are_those_that_were_made(size: int, positions: set[int]) -> None:
    former = Table.of((f"key {number}", (number,)) for number in range(size))
    new, wanted = former, sorted({position % size for position in positions})
    for position in wanted:
        new = new.replace(f"key {position}", (-position,))
    assert new.list_changes(former) == [(f"key {position}", (-position,)) for position in wanted]


def test_the_order_of_keys_belongs_to_them() -> None:
    table = Table.of([("a", 1), ("b", 2)])
    assert table.has_keys_of(table.replace("a", 3))
    assert table.has_keys_of(Table.of([("a", 4), ("b", 5)]))
    assert not table.has_keys_of(Table.of([("b", 2), ("a", 1)]))
