"""One request of the simulation."""

from __future__ import annotations

from collections.abc import Hashable


class Request:
    """One sequence. Times are seconds of the simulation, lengths tokens.

    `family` names the shared beginning of its prompt (`family_blocks` long), `conversation` what comes after it: the
    next turn of a conversation, or the same request after a preemption, finds its blocks under that name. None keeps
    the request out of the prefix cache, as vLLM does with prompts whose log-probabilities are wanted.
    """

    __slots__ = (
        "adapter", "arrival", "blocks", "cached", "computed", "conversation", "corrupted", "done", "error",
        "external", "family", "family_blocks", "fetched", "finish", "first_scheduled", "first_token", "generated",
        "held_family", "last_token", "left", "max_tokens", "output", "preemptions", "prompt", "ready_at", "seen",
        "shared", "think", "trace", "turn",
    )  # fmt: skip

    def __init__(
        self, *, arrival: float, prompt: int, output: int, max_tokens: int, conversation: Hashable,
        family: Hashable = None, family_blocks: int = 0, adapter: str | None = None, ready_at: float = 0.0,
        trace: str | None = None, turn: int = 0, error: bool = False, corrupted: bool = False,
        think: float | None = None,
    ) -> None:  # fmt: skip
        self.arrival = arrival
        self.prompt = prompt
        self.output = min(output, max_tokens)
        self.max_tokens = max_tokens
        self.finish = "error" if error else "length" if output >= max_tokens else "stop"
        self.error = error
        self.corrupted = corrupted
        self.think = think  # seconds until the next turn of its conversation, None when there is none
        self.family = family
        self.family_blocks = family_blocks if family is not None else 0
        self.conversation = conversation
        self.turn = turn
        self.adapter = adapter
        self.ready_at = ready_at
        self.trace = trace
        self.left = False  # its client is gone
        self.done = False  # it finished by itself
        self.seen = False  # was scheduled before
        self.fetched = False  # its external cache look-up is done
        self.computed = 0
        self.generated = 0
        self.blocks = 0  # its own
        self.shared = 0  # blocks of the family's chain that it uses
        self.held_family = False
        self.cached = 0
        self.external = 0
        self.preemptions = 0
        self.first_scheduled = self.first_token = self.last_token = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt + self.generated
