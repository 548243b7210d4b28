"""What runs inside a training process: membership, collectives, gradient averaging. Importing it imports no torch."""
