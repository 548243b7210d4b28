"""What the parties of a job say to each other: plain values, and `codec`, which puts them on the wire."""
