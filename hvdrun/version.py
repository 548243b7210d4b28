"""The version of this installation. Launcher, agents and workers of one job must have the same version."""

__version__ = "0.3.0"
