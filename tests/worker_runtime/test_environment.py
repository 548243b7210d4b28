"""What a worker reads from the variables of its agent."""

from worker_runtime.environment import read_is_elastic, read_numbers
from worker_runtime.membership import Assignment

NUMBERS = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "6",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "3",
    "HOROVOD_CROSS_SIZE": "4",
}


def test_each_number_is_read_from_its_own_variable() -> None:
    assert read_numbers(NUMBERS) == Assignment(rank=5, size=6, local_rank=1, local_size=2, cross_rank=3, cross_size=4)


def test_a_job_is_elastic_only_where_its_agent_says_so() -> None:
    assert read_is_elastic({"HOROVOD_ELASTIC": "1"})
    assert not read_is_elastic({"HOROVOD_ELASTIC": "0"})
    assert not read_is_elastic({})
