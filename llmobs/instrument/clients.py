"""What prompt length is usual for each client, to notice one that jumps (a prompt concatenated again and again)."""

from __future__ import annotations

from collections import OrderedDict

#: Clients remembered, the least recent forgotten first; prompts seen before a judgement; shortest prompt judged.
MAX_CLIENTS = 4096
WARM_UP = 5
MIN_TOKENS = 64
_WEIGHT = 0.1


class Clients:
    """Keeps a slow moving average of prompt tokens per client. A client is a hash, never a name or a key."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._known: OrderedDict[int, tuple[int, float]] = OrderedDict()

    def judge(self, client: int, tokens: int) -> bool:
        """Return whether `tokens` is far above this client's usual, and learn from it."""
        count, usual = self._known.pop(client, (0, float(tokens)))
        outlier = count >= WARM_UP and tokens >= MIN_TOKENS and tokens > self.factor * usual
        weight = _WEIGHT if count >= WARM_UP else 1 / (count + 1)
        self._known[client] = (count + 1, usual + weight * (tokens - usual))
        if len(self._known) > MAX_CLIENTS:
            self._known.popitem(last=False)
        return outlier
