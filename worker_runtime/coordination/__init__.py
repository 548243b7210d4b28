"""The conversation with the sequencer, which fixes the order of the collectives.

A rank submits operations in any order. Each becomes a request to the generation's sequencer (`messages`, `wire`), over
one connection (`link`). The responses come in the same order on all ranks: an operation is released or refused, or the
generation has failed (`driver`). `operation` has operations and their handles. `group` connects the members of a
generation, over a store in the sequencer (`store`). `ordering` has the sequencer's pure rules; `sequencer` is its
process.

Threads: one thread at a time drives the connection: a thread that waits for an operation, or `hvd-driver` when no
thread waits.
"""
