"""hvdrun starts the workers of a distributed training job, watches them, and ends them."""

__version__ = "0.1.0"
