"""What a launcher reads about ranks that wait."""

import pytest

from rendezvous.wire.waits import AwaitedOperation, Waits, find_line

LINE = (
    b'{"waits": 3, "operations": [["allreduce \'a\'", 10.0, [[0, 2], [5, 5]], [[3, 4]]]], "blocked": [[1, 1]], '
    b'"is_hang": true}\n'
)


def test_ranks_come_in_runs() -> None:
    text = find_line(b"an import says: " + LINE)
    assert text is not None
    waits = Waits.decode(text)
    assert waits == Waits(3, (AwaitedOperation("allreduce 'a'", 10.0, (0, 1, 2, 5), (3, 4)),), (1,), is_hang=True)
    assert (sorted(waits.waiting), sorted(waits.missing)) == ([0, 1, 2, 5], [3, 4])


def test_another_line_is_no_report() -> None:
    assert find_line(b'{"port": 4711}\n') is None


@pytest.mark.parametrize("text", ["", "{}", '{"waits": 1, "operations": [[]], "blocked": [], "is_hang": false}'])
def test_a_malformed_report_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        Waits.decode(text)
