"""Speaking with the sequencer, which fixes the order of the collectives.

In come operations of this rank, in any order. Each becomes a question to the sequencer of the generation (`messages`,
`wire`), over one connection (`link`). Out come the sequencer's answers, in the one order of all ranks: which operations
are released, which are refused, and that nothing more will be answered (`driver`). `operation` has what travels and
what becomes of it. `group` connects the members of a generation, over a store that the sequencer holds (`store`).
`ordering` has the sequencer's rules, which are pure; `sequencer` is the process that keeps them.

Threads: one at a time drives the connection. That is a thread that waits for an operation, or `hvd-driver` when none
waits for what is pending.
"""
