"""The collectives, written once on torch tensors; the framework packages only translate arrays.

Each collective is an `Operation`. Its constructor takes the tensors of one call, and raises ValueError for an error of
this rank, before anything is submitted. Its signature has everything that must be the same on all ranks; the sequencer
compares signatures. It communicates in a torch group, and computes the result.

This package makes up for gloo's limits. Tensors that are not contiguous are copied, since gloo would overwrite their
neighbors. Dtypes that gloo lacks are sent as others or as bytes. Uneven sizes are built from gloo's even collectives.
Unless it works in place, an operation can start again in another group after a failure. `dtypes` has the table of
supported dtypes.

Threads: none. The caller's thread creates an operation, the thread that drives the connection to the sequencer starts
it, and the thread that waits for it finishes it.
"""
