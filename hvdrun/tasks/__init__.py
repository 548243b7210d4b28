"""Functions that a program runs on the workers: the messages between it and the launcher, and the launcher's end."""
