"""The supported dtypes of the collectives, on the CPU and on CUDA, and the dtypes in which values are sent.

A test tries each entry of this table:

                    | Sum | Average | Min, Max | Product | Adasum | sparse Sum | sparse Average | moves
    ----------------|-----|---------|----------|---------|--------|------------|----------------|------
    float16         | yes | yes     | yes      | yes     | yes    | yes        | yes            | yes
    bfloat16        | yes | yes     | yes      | yes     | yes    | yes        | yes            | yes
    float32         | yes | yes     | yes      | yes     | yes    | yes        | yes            | yes
    float64         | yes | yes     | yes      | yes     | yes    | yes        | yes            | yes
    complex64       | yes | yes     | no       | no      | no     | yes        | yes            | yes
    complex128      | yes | yes     | no       | no      | no     | yes        | yes            | yes
    int8            | yes | yes     | yes      | yes     | no     | yes        | no             | yes
    int16           | yes | yes     | yes      | yes     | no     | yes        | no             | yes
    int32           | yes | yes     | yes      | yes     | no     | yes        | no             | yes
    int64           | yes | yes     | yes      | yes     | no     | yes        | no             | yes
    uint8           | yes | yes     | yes      | yes     | no     | yes        | no             | yes
    uint16          | no  | no      | no       | no      | no     | no         | no             | yes
    uint32          | no  | no      | no       | no      | no     | no         | no             | yes
    uint64          | no  | no      | no       | no      | no     | no         | no             | yes
    bool            | no  | no      | yes      | no      | no     | no         | no             | yes
    float8_e4m3fn   | no  | no      | no       | no      | no     | no         | no             | yes
    float8_e4m3fnuz | no  | no      | no       | no      | no     | no         | no             | yes
    float8_e5m2     | no  | no      | no       | no      | no     | no         | no             | yes
    float8_e5m2fnuz | no  | no      | no       | no      | no     | no         | no             | yes
    float8_e8m0fnu  | no  | no      | no       | no      | no     | no         | no             | yes

The first five columns are the reductions of allreduce and, except Adasum, of reducescatter. The sparse columns are
`SparseAllreduce`, the last column is broadcast, allgather and alltoall. Other dtypes raise ValueError.

Sum, Average and Product of bool raise ValueError since their meaning is unclear. The average of integers is their exact
sum divided by the size, truncated toward zero. The sum is computed in int64, so averages of int64 values beyond 2**63 /
size wrap around. Sums and products wrap around in their own dtype. Sparse integers have no average, since it would be
truncated element by element.
"""

import math

import torch

from worker_runtime.coordination.ordering.requests import Reduction

HALVES = frozenset({torch.float16, torch.bfloat16})
FLOATS = HALVES | {torch.float32, torch.float64}
INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
COMPLEX = frozenset({torch.complex64, torch.complex128})

REDUCIBLE: dict[Reduction, frozenset[torch.dtype]] = {
    Reduction.AVERAGE: FLOATS | INTEGERS | COMPLEX,
    Reduction.SUM: FLOATS | INTEGERS | COMPLEX,
    Reduction.MIN: FLOATS | INTEGERS | {torch.bool},
    Reduction.MAX: FLOATS | INTEGERS | {torch.bool},
    Reduction.PRODUCT: FLOATS | INTEGERS,
    Reduction.ADASUM: FLOATS,
}

# The dtypes whose bytes can be moved, in the order of the table.
MOVABLE = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in MOVABLE}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def name_dtype(dtype: torch.dtype) -> str:
    """The dtype's name in signatures: "float32".

    Raises:
        ValueError: the dtype is not in the table.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise ValueError(f"tensors of {dtype} are not supported; convert them")
    return name


def find_dtype(name: str) -> torch.dtype:
    """The dtype of a name in a signature."""
    return _DTYPES[name]


def check_reducible(dtype: torch.dtype, reduction: Reduction) -> None:
    """Raise ValueError unless the reduction supports the dtype."""
    if dtype not in REDUCIBLE[reduction]:
        raise ValueError(f"tensors of {dtype} do not support {reduction.name.lower()}; convert them")


def check_sparse(dtype: torch.dtype, reduction: Reduction) -> None:
    """Raise ValueError unless the reduction supports sparse tensors of the dtype."""
    if reduction not in (Reduction.SUM, Reduction.AVERAGE):
        raise ValueError(
            f"sparse tensors do not support {reduction.name.lower()}; use Sum or Average, or make them dense"
        )
    check_reducible(dtype, reduction)
    if reduction is Reduction.AVERAGE and dtype in INTEGERS:
        raise ValueError(f"sparse tensors of {dtype} do not support average; use Sum, or make them dense")


def choose_wire_dtype(dtype: torch.dtype, reduction: Reduction, *, in_request: bool) -> torch.dtype:
    """The dtype in which values are sent to be reduced.

    Integers to average are sent as int64, so that the sum is exact; int16, which gloo lacks, as int32; float16 and
    bfloat16 inside a request as float32, since few bytes cost little, and the sum is more precise.
    """
    if dtype in INTEGERS:
        if reduction is Reduction.AVERAGE:
            return torch.int64
        if dtype == torch.int16:
            return torch.int32
        return dtype
    if in_request and dtype in HALVES:
        return torch.float32
    return dtype


def choose_sum(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values are summed on one rank."""
    if dtype in INTEGERS:
        return torch.int64
    if dtype in HALVES:
        return torch.float32
    return dtype


def make_neutral_value(dtype: torch.dtype, reduction: Reduction) -> float | int | bool:
    """The neutral element of a reduction: the value that does not change the result."""
    if reduction is Reduction.PRODUCT:
        return 1
    if reduction not in (Reduction.MIN, Reduction.MAX):
        return 0
    is_min = reduction is Reduction.MIN
    if dtype == torch.bool:
        return is_min
    if dtype.is_floating_point:
        return math.inf if is_min else -math.inf
    bounds = torch.iinfo(dtype)
    return bounds.max if is_min else bounds.min
