"""The backends, which communicate tensors: their choice, and the creation of their groups.

gloo is always available: it communicates CPU tensors. CUDA tensors use NCCL if torch has it, in groups that are created
for the first released operation, and otherwise gloo, which copies them to the host and back. `hvdrun --backend`, or
HVD_BACKEND under another launcher, requests another backend. A request that torch cannot meet is an error; no backend
is replaced silently.

UCC is used only on request. It runs the collectives in the table in `ucc`, and gloo runs the others; each group is
tested when it is formed. UCC cannot be aborted: a process that has lost a peer in such a group must be restarted.

`python -m worker_runtime.groups.backends NAME` reports whether a backend can be used; agents run it before they start
workers.
"""
