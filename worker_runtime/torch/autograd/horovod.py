"""Horovod's autograd functions, with its arguments."""

from typing import Any

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.alltoall import Splits
from worker_runtime.collectives.combination import choose, choose_for_scatter
from worker_runtime.torch.autograd.adjoints import copy, exchange, gather, reduce, scatter
from worker_runtime.torch.autograd.collective import Collective, keep


class HorovodAllreduce(Collective):
    """Differentiable allreduce of one tensor."""

    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        average: bool | None,  # noqa: FBT001 - Horovod's signature
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Combine."""
        how = choose(op, average, prescale_factor, postscale_factor)
        call = begin_call("allreduce", name, process_set)
        return keep(ctx, call, reduce(how, call, (tensor,)), (tensor,))[0]


class HorovodGroupedAllreduce(Collective):
    """Differentiable allreduce of several tensors at once."""

    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - as above
        average: bool | None,  # noqa: FBT001 - Horovod's signature
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Combine."""
        how = choose(op, average, prescale_factor, postscale_factor)
        call = begin_call("grouped_allreduce", name, process_set)
        return keep(ctx, call, reduce(how, call, tensors), tensors, 6)


class HorovodAllgather(Collective):
    """Differentiable allgather of one tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:  # type: ignore[override]  # noqa: ANN401 - as above
        """Gather."""
        call = begin_call("allgather", name, process_set)
        return keep(ctx, call, gather(call, (tensor,)), (tensor,))[0]


class HorovodGroupedAllgather(Collective):
    """Differentiable allgather of several tensors at once."""

    @staticmethod
    def forward(  # type: ignore[override]  # its arguments are Horovod's
        ctx: Any,  # noqa: ANN401 - as above
        name: str | None,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Gather."""
        call = begin_call("grouped_allgather", name, process_set)
        return keep(ctx, call, gather(call, tensors), tensors, 2)


class HorovodBroadcast(Collective):
    """Differentiable broadcast."""

    @staticmethod
    def forward(  # type: ignore[override]  # its arguments are Horovod's
        ctx: Any,  # noqa: ANN401 - as above
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Copy the root's values into a new tensor."""
        call = begin_call("broadcast", name, process_set)
        return keep(ctx, call, copy(root_rank, call, (tensor,)), (tensor,))[0]


class HorovodAlltoall(Collective):
    """Differentiable alltoall."""

    @staticmethod
    def forward(  # type: ignore[override]  # its arguments are Horovod's
        ctx: Any,  # noqa: ANN401 - as above
        tensor: torch.Tensor,
        splits: Splits | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, ...]:
        """Exchange; gives the rows and the received splits."""
        call = begin_call("alltoall", name, process_set)
        return keep(ctx, call, exchange(splits, call, (tensor,)), (tensor,))


class HorovodReducescatter(Collective):
    """Differentiable reducescatter of one tensor."""

    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - as above
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        """Combine and cut."""
        how = choose_for_scatter(op, prescale_factor, postscale_factor)
        call = begin_call("reducescatter", name, process_set)
        return keep(ctx, call, scatter(how, call, (tensor,)), (tensor,))[0]


class HorovodGroupedReducescatter(Collective):
    """Differentiable reducescatter of several tensors at once."""

    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - as above
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Combine and cut."""
        how = choose_for_scatter(op, prescale_factor, postscale_factor)
        call = begin_call("grouped_reducescatter", name, process_set)
        return keep(ctx, call, scatter(how, call, tensors), tensors, 5)
