"""What runs inside vLLM: the ledger behind `/stats`, structured logs, failures, and spans.

Nothing here may break or slow vLLM. Every piece of ours that vLLM calls goes through a `guard.Guard`, which catches,
counts, and after three failures removes it; files and sockets are touched by a thread of our own; vLLM is imported
lazily, only inside the processes that already run it.

How a request is followed: `middleware` makes a `record.RequestRecord` when it arrives; `frontend` links the engine's
sequences to it; when the response has ended, `record.RequestFacts` are computed once and handed to the ledger, the
log, and the spans, so that all three say the same.
"""
