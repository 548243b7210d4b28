"""Checksums over the bits of tensors, computed where the tensors are.

A tensor is a sequence of 64-bit words x[0], x[1], ..., and its checksum the sum of w[i] * x[i], modulo 2^64, with odd
weights w[i]. A flipped bit changes one word by 2^b, b < 64, and so the sum by 2^b times an odd number, which is no
multiple of 2^64: **one flipped bit always changes the checksum**. The weights differ, so other changes, such as two
swapped values, leave it equal with a probability of about 2^-60.

A product of odd numbers is odd. So a checksum of checksums has the same property.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import torch
from torch.nn.parameter import is_lazy

_WORD_BYTES = 8
_ROW = 1 << 16  # words; the weights of a row stay in the processor's cache
_ROWS_AT_ONCE = 64  # on a device, where products need memory
_HALF = 32
_LOW = (1 << _HALF) - 1
# Of splitmix64, as signed integers: they turn a count into numbers that look random.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def make_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The checksum of a tensor's bits: an int64 without dimensions, on the tensor's device."""
    words = _view_words(tensor)
    count = words.numel() // _ROW
    rows, rest = words[: count * _ROW].view(count, _ROW), words[count * _ROW :]
    total = _weigh(rest, make_weights(rest.numel(), words.device))
    if not count:
        return total
    if words.device.type == "cpu":
        sums = torch.mv(rows, make_weights(_ROW, words.device))
    # torch multiplies matrices of integers on CPUs alone.
    else:
        weights = make_weights(_ROW, words.device)
        sums = torch.cat([(part * weights).sum(1) for part in rows.split(_ROWS_AT_ONCE)])  # type: ignore[no-untyped-call]  # torch declares no types
    return total + _weigh(sums, make_weights(count + 1, words.device)[1:])


def make_state_checksum(state: Mapping[str, object]) -> torch.Tensor | None:
    """The checksum of an optimizer's state for one parameter; None where it has no tensors."""
    sums = [make_checksum(each) for name in sorted(state, key=str) for each in _list_dense(state[name])]
    if not sums:
        return None
    return fold(stack(sums))


def _list_dense(value: object) -> Iterator[torch.Tensor]:
    """The dense tensors of a state's value: of a list, and of a sparse tensor, as the momentum of sparse gradients."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _list_dense(item)
    elif isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        whole = value.detach().coalesce()
        yield from (whole.indices(), whole.values())
    elif isinstance(value, torch.Tensor) and has_bits(value):
        yield value


def has_bits(tensor: torch.Tensor) -> bool:
    """Whether a tensor has dense values, which have a checksum."""
    return not is_lazy(tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"


def fold(sums: torch.Tensor) -> torch.Tensor:
    """A checksum of checksums."""
    return _weigh(sums, make_weights(sums.numel(), sums.device))


def stack(sums: Iterable[torch.Tensor]) -> torch.Tensor:
    """Checksums as one tensor on the CPU. Those of one device are copied together."""
    listed = list(sums)
    if not listed:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    device = next((each.device for each in listed if each.device.type != "cpu"), listed[0].device)
    return torch.stack([each.to(device) for each in listed]).cpu()


def split(sums: torch.Tensor) -> torch.Tensor:
    """Each checksum as two numbers from 0 to 2^32 - 1."""
    return torch.stack([sums & _LOW, (sums >> _HALF) & _LOW], dim=-1)


@cache
def _make_row(device: torch.device) -> torch.Tensor:
    return _make_odd(_ROW, device)


def make_weights(count: int, device: torch.device) -> torch.Tensor:
    """The first `count` weights: odd numbers that look random, the same everywhere."""
    if count <= _ROW:
        return _make_row(device)[:count]
    return _make_odd(count, device)


def _make_odd(count: int, device: torch.device) -> torch.Tensor:
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _STEP
    numbers = (numbers ^ (numbers >> 30)) * _FIRST
    numbers = (numbers ^ (numbers >> 27)) * _SECOND
    return (numbers ^ (numbers >> 31)) | 1


def _weigh(words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of the products; integers wrap."""
    if words.device.type == "cpu":
        return torch.dot(words, weights)
    return (words * weights).sum()


def _view_words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as 64-bit integers; zeros fill the last one."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if not flat.numel():
        return torch.zeros(0, dtype=torch.int64, device=tensor.device)
    content = flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # one element may have any stride
    count = -(-content.numel() // _WORD_BYTES)
    if content.numel() % _WORD_BYTES or content.data_ptr() % _WORD_BYTES or content.storage_offset() % _WORD_BYTES:
        padded = torch.zeros(count * _WORD_BYTES, dtype=torch.uint8, device=tensor.device)
        padded[: content.numel()] = content
        content = padded
    return content.view(torch.int64)
