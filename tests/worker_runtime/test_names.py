"""Names of operations that the program gives none."""

from worker_runtime.names import Names


def test_unnamed_operations_are_counted_for_each_kind_and_set() -> None:
    names = Names()
    made = [names.make(kind, None, number) for kind, number in [("a", 0), ("b", 0), ("a", 1), ("a", 0)]]
    assert made == ["a.noname.1", "b.noname.1", "a.noname.1", "a.noname.2"]
    assert names.make("a", "mine", 0) == "a.mine"


def test_after_a_join_all_are_counted_anew_under_names_that_are_new() -> None:
    names = Names()
    names.make("a", None, 0)
    names.count_join()
    assert [names.make("a", None, number) for number in (0, 0, 1)] == ["a.noname.1.1", "a.noname.1.2", "a.noname.1.1"]
    names.count_join()
    assert names.make("a", None, 0) == "a.noname.2.1"


def test_a_set_that_takes_the_number_of_another_counts_anew() -> None:
    names = Names()
    for number in (0, 1):
        names.make("a", None, number)
    names.forget(1)
    assert [names.make("a", None, number) for number in (0, 1)] == ["a.noname.2", "a.noname.1"]
