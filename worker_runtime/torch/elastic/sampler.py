"""The sampler of `elastic` as a data loader of torch takes it."""

import torch.utils.data

from worker_runtime.elastic import sampler


class ElasticSampler(sampler.ElasticSampler, torch.utils.data.Sampler[int]):
    """Deals the indices of a data set out to the workers; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: what is sampled; only its length counts.
        shuffle: whether the order is random, another one in each epoch, the same on all ranks.
        seed: of that order.
    """
