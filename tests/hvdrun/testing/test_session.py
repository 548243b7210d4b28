"""What a marker asks for, and what it may not."""

import pytest

from hvdrun.testing.session import make_cluster, read_style


def test_a_marker_names_the_options_of_a_cluster() -> None:
    assert make_cluster({"np": 3}).size == 3


@pytest.mark.parametrize(("options", "says"), [({"npp": 2}, "did you mean 'np'"), ({"np": 0}, "hvdrun")])
def test_a_marker_that_asks_for_the_impossible_fails_the_test(options: dict[str, object], says: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=says):
        make_cluster(options)


def test_the_style_of_tracebacks_is_that_of_pytest() -> None:
    assert [read_style(name) for name in ("auto", "line", "short", "no")] == ["long", "short", "short", "no"]
