"""What a type checker knows of functions that run on workers; checked, never run."""

from typing import assert_type

import hvdrun


def count(words: str, *, times: int = 1) -> int:
    """A function."""
    return len(words) * times


def call() -> None:
    """The results have the type of what the function returns."""
    results: list[int] = hvdrun.run(count, ("a",), {"times": 2}, num_proc=2, start_timeout=30)
    assert_type(results[0], int)
    with hvdrun.Cluster(num_proc=2, hosts=["localhost:2"], env={"A": "1"}) as cluster:
        assert_type(cluster.run(count, args=("a",)), list[int])
        assert_type(cluster.run(lambda: "text"), list[str])


def mistake() -> None:
    """What an editor underlines."""
    hvdrun.run(3)  # type: ignore[arg-type]  # no function
    hvdrun.run(count, num_proc="2")  # type: ignore[arg-type]  # a number is meant
    hvdrun.Cluster(2).run(count, 1)  # type: ignore[arg-type]  # a sequence of arguments
