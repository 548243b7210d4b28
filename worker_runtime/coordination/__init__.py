"""The conversation with the sequencer, which fixes the order of the collectives."""
