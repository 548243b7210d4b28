"""The contenders of a paired measurement take turns."""

from benchmarks.paired import take_round, take_turns


def note_order(number: int) -> list[str]:
    """In which order a round calls its contenders."""
    order: list[str] = []
    take_round({name: lambda name=name: order.append(name) for name in "abcdef"}, number)  # type: ignore[misc]  # mypy infers no type for a lambda's default
    return order


def test_a_round_s_order_depends_on_its_number_alone() -> None:
    orders = [note_order(number) for number in range(20)]
    assert orders == [note_order(number) for number in range(20)]
    assert {order[0] for order in orders} == set("abcdef")


def test_every_contender_takes_part_in_every_round() -> None:
    assert {tuple(sorted(note_order(number))) for number in range(20)} == {tuple("abcdef")}


def test_seconds_are_kept_in_the_order_of_the_rounds() -> None:
    seconds = iter(range(100))
    assert take_turns({"a": lambda: float(next(seconds))}, 3) == {"a": [0.0, 1.0, 2.0]}
