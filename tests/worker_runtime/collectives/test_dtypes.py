"""The table of dtypes and operations is what really happens."""

import pytest
import torch

from tests.worker_runtime.collectives.makers import MAKERS
from tests.worker_runtime.collectives.ways import run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives import dtypes
from worker_runtime.coordination.ordering.requests import Reduction


def read_table() -> dict[tuple[str, str], bool]:
    """What the docstring says."""
    lines = [line.strip() for line in dtypes.__doc__.splitlines() if " | " in line]
    _, *columns = (cell.strip() for cell in lines[0].split("|"))
    table = {}
    for line in lines[1:]:
        name, *cells = (cell.strip() for cell in line.split("|"))
        assert set(cells) <= {"yes", "no"}
        table |= {(name, column): cell == "yes" for column, cell in zip(columns, cells, strict=True)}
    return table


def test_the_docstring_has_the_table() -> None:
    names = list(dict.fromkeys(name for name, _ in read_table()))
    assert names == [dtypes.name_dtype(dtype) for dtype in dtypes.MOVABLE]
    assert read_table().keys() == {(name, column) for name in names for column in MAKERS}


@pytest.mark.parametrize("way", ["request", "gloo"])
@pytest.mark.parametrize("column", MAKERS)
def test_every_entry_of_the_table_is_true(column: str, way: str) -> None:
    entries = {name: allowed for (name, of), allowed in read_table().items() if of == column}
    makers = MAKERS[column]

    def body(engine: ThreadEngine) -> object:
        shown = {}
        for name, allowed in entries.items():
            for number, make in enumerate(makers):
                x = torch.tensor([1, 1]).to(dtypes.find_dtype(name))
                if allowed:
                    shown[name, number] = str(engine.run(make(x, engine.all)))
                else:
                    with pytest.raises(
                        ValueError, match=r"^[a-z_]+ 'x': .*(convert them|use Sum, or make them dense)$"
                    ):
                        make(x, engine.all)
        return shown

    first, second = run(body, way=way)
    assert len(first) == len(makers) * sum(entries.values())
    assert first == second


def test_dtypes_have_torchs_names_and_an_unknown_dtype_is_refused() -> None:
    for dtype in dtypes.MOVABLE:
        assert dtypes.find_dtype(dtypes.name_dtype(dtype)) == dtype
    assert dtypes.name_dtype(torch.float16) == "float16"
    with pytest.raises(ValueError, match="not supported; convert"):
        dtypes.name_dtype(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize(
    ("dtype", "reduction", "in_request", "expected"),
    [
        (torch.int8, Reduction.AVERAGE, False, torch.int64),
        (torch.int16, Reduction.SUM, False, torch.int32),
        (torch.int8, Reduction.SUM, False, torch.int8),
        (torch.float16, Reduction.SUM, True, torch.float32),
        (torch.float16, Reduction.SUM, False, torch.float16),
    ],
    ids=str,
)
def test_each_dtype_travels_as_the_expected_one(
    dtype: torch.dtype, reduction: Reduction, expected: torch.dtype, *, in_request: bool
) -> None:
    assert dtypes.choose_wire_dtype(dtype, reduction, in_request=in_request) == expected


def test_sums_on_one_rank_are_wide() -> None:
    assert dtypes.choose_sum(torch.int8) == torch.int64
    assert dtypes.choose_sum(torch.bfloat16) == torch.float32
    assert dtypes.choose_sum(torch.complex64) == torch.complex64
