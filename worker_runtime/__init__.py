"""The part of hvdrun inside a training process: membership, collectives, gradient averaging. It imports no torch."""
