"""-x: which variables are forwarded, with which values."""

import pytest

from hvdrun.errors import BadValueError, VariableNotSetError
from hvdrun.spec.environment import choose_forwarded

OWN = {b"NCCL_DEBUG": b"INFO", b"NCCL_ALGO": b"Ring", b"HVD_JOB": b"around", b"LATIN": b"\xe9", b"EMPTY": b""}


@pytest.mark.parametrize(
    ("requests", "chosen"),
    [
        ([], {}),
        (["NCCL_DEBUG"], {b"NCCL_DEBUG": b"INFO"}),
        (["LATIN", "EMPTY"], {b"LATIN": b"\xe9", b"EMPTY": b""}),
        (["NCCL_DEBUG=WARN"], {b"NCCL_DEBUG": b"WARN"}),
        (["NEW=a=b c"], {b"NEW": b"a=b c"}),
        (["NEW="], {b"NEW": b""}),
        (["GLOB=*"], {b"GLOB": b"*"}),
        (["NCCL_*"], {b"NCCL_DEBUG": b"INFO", b"NCCL_ALGO": b"Ring"}),
        (["NCCL_[AB]*", "N?W*"], {b"NCCL_ALGO": b"Ring"}),
        (["nccl_*"], {}),
        (["*"], {name: value for name, value in OWN.items() if name != b"HVD_JOB"}),
        (["NCCL_*", "NCCL_DEBUG=WARN"], {b"NCCL_DEBUG": b"WARN", b"NCCL_ALGO": b"Ring"}),
        (["A=1", "A=2"], {b"A": b"2"}),
        (["B=\udcff"], {b"B": b"\xff"}),
    ],
)
def test_what_is_asked_for_is_forwarded(requests: list[str], chosen: dict[bytes, bytes]) -> None:
    assert choose_forwarded(requests, OWN) == chosen


def test_a_name_that_is_not_set_is_refused_with_what_would_help() -> None:
    with pytest.raises(VariableNotSetError, match=r"'NCCL_DEBG'.* is not set here: .* -x NAME=VALUE\.$"):
        choose_forwarded(["NCCL_DEBG"], OWN)


def test_what_is_forwarded_anyway_need_not_be_set() -> None:
    assert choose_forwarded(["PATH", "LD_LIBRARY_PATH"], {b"PATH": b"/bin"}) == {b"PATH": b"/bin"}


@pytest.mark.parametrize("request_", ["", "=hunter2", "A\0B=hunter2"])
def test_what_is_no_variable_is_refused_without_its_value(request_: str) -> None:
    with pytest.raises(BadValueError, match=r"^-x takes a variable") as caught:
        choose_forwarded([request_], OWN)
    assert "hunter2" not in str(caught.value)
