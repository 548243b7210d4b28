"""What the parameters of an optimizer are called."""

from collections.abc import Iterable

import torch

from worker_runtime.errors import WrongArgumentError
from worker_runtime.torch.facade import list_parameters

_PAIR = 2


def read_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The names that a user has given; none where he has given none.

    Args:
        optimizer: a plain one.
        named_parameters: may name parameters that the optimizer does not have.

    Raises:
        ValueError: they are no pairs, a name or a parameter is there twice, or one of the optimizer has no name.
    """
    if named_parameters is None:
        return {}
    if not isinstance(named_parameters, Iterable):
        raise WrongArgumentError(f"named_parameters is {named_parameters!r}; give model.named_parameters()")
    pairs = list(named_parameters)
    if not all(_is_named(pair) for pair in pairs):
        raise ValueError("named_parameters must be (name, parameter) tuples, as model.named_parameters() gives them")
    names = [name for name, _ in pairs]
    if not pairs:
        return {}
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(duplicates)}")
    named: dict[torch.Tensor, str] = {}
    for name, parameter in pairs:
        if parameter in named:
            raise ValueError(f"named_parameters has one parameter under two names: {named[parameter]} and {name}")
        named[parameter] = name
    unnamed = [(name, parameter) for name, parameter in list_parameters(optimizer, {}) if parameter not in named]
    if unnamed:
        listed = ", ".join(f"{name} (id {id(parameter)})" for name, parameter in unnamed)
        raise ValueError(f"named_parameters lacks parameters of the optimizer: {listed}")
    return named


def _is_named(pair: object) -> bool:
    return (
        isinstance(pair, tuple)
        and len(pair) == _PAIR
        and isinstance(pair[0], str)
        and isinstance(pair[1], torch.Tensor)
    )
