"""Which dtypes the collectives take, and as what each travels; on CPU and CUDA alike.

What may be done with which dtype (a test tries each entry of this table):

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

The first five columns are reductions of allreduce and, Adasum aside, of reducescatter; the sparse ones those of
`SparseAllreduce`; broadcast, allgather and alltoall move. A dtype that stands nowhere in the table is refused.

Sum, average and product of truth values are refused since their meaning is unclear. The average of integers is their
exact sum divided by the size, truncated toward zero, as long as that sum is an int64: of int64 values beyond 2**63 /
size in magnitude it may wrap around. (To add up quotients and remainders would send all twice, for values that no
program averages.) Sums and products wrap around in their own dtype. Sparse integers have no average, since it would be
truncated element by element.
"""

import torch

from worker_runtime.coordination.ordering.questions import Reduction

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

# Their bytes can be moved: in the order of the table.
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
    """The dtype's name as it stands in signatures: "float32".

    Raises:
        ValueError: it cannot even be moved.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise ValueError(f"tensors of {dtype} are not supported; convert them")
    return name


def find_dtype(name: str) -> torch.dtype:
    """The dtype of a name in a signature."""
    return _DTYPES[name]


def check_reducible(dtype: torch.dtype, reduction: Reduction) -> None:
    """Raise ValueError unless values of this dtype can be reduced so."""
    if dtype not in REDUCIBLE[reduction]:
        raise ValueError(f"tensors of {dtype} have no {reduction.name.lower()}; convert them")


def check_sparse(dtype: torch.dtype, reduction: Reduction) -> None:
    """Raise ValueError unless sparse values of this dtype can be reduced so."""
    if reduction not in (Reduction.SUM, Reduction.AVERAGE):
        raise ValueError(f"sparse tensors have no {reduction.name.lower()}; use Sum or Average, or make them dense")
    check_reducible(dtype, reduction)
    if reduction is Reduction.AVERAGE and dtype in INTEGERS:
        raise ValueError(f"sparse tensors of {dtype} have no average; use Sum, or make them dense")


def choose_travel(dtype: torch.dtype, reduction: Reduction, *, in_question: bool) -> torch.dtype:
    """As what values are sent to be reduced.

    Integers that are to be averaged as int64, so that the sum is exact; int16, which gloo lacks, as int32; halves, when
    they travel inside the question, as float32, since their bytes cost little there and the sum is better.
    """
    if dtype in INTEGERS:
        if reduction is Reduction.AVERAGE:
            return torch.int64
        return torch.int32 if dtype == torch.int16 else dtype
    return torch.float32 if in_question and dtype in HALVES else dtype


def choose_sum(dtype: torch.dtype) -> torch.dtype:
    """As what values are added up on one rank."""
    if dtype in INTEGERS:
        return torch.int64
    return torch.float32 if dtype in HALVES else dtype


def make_neutral_value(dtype: torch.dtype, reduction: Reduction) -> float | int | bool:
    """What changes no other value when it is reduced with it."""
    match reduction:
        case Reduction.PRODUCT:
            return 1
        case Reduction.MIN | Reduction.MAX:
            is_min = reduction is Reduction.MIN
            if dtype == torch.bool:
                return is_min
            if dtype.is_floating_point:
                return float("inf") if is_min else float("-inf")
            bounds = torch.iinfo(dtype)
            return bounds.max if is_min else bounds.min
    return 0
