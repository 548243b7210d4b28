"""The pure heart of the rendezvous: no input or output, no clock, no threads, no randomness, no logging."""
