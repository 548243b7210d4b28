"""Functions that a program runs on the workers: its messages with the launcher, and the launcher's part."""
