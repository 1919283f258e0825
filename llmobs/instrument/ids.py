"""Random ids: unguessable is not needed, unique is.

From a generator of our own, seeded by the operating system: vLLM seeds `random` itself, so that its global generator
gives every server the same ids, and a system call for each request costs as much as the rest of its start. Digits are
made in lots: while a request starts, generator and formatting are never in the processor's cache.
"""

from __future__ import annotations

import os
import random

_LOT = 8192  # digits

_generator = random.Random()
_digits = ""
_used = 0


def hexadecimal(digits: int) -> str:
    """Return a random number of that many hexadecimal digits, at most `_LOT`. For one thread, the event loop's."""
    global _digits, _used
    if _used + digits > len(_digits):
        _digits, _used = octets(_LOT // 2).hex(), 0
    start = _used
    _used += digits
    return _digits[start:_used]


def octets(count: int) -> bytes:
    """Return that many random bytes."""
    return _generator.randbytes(count)


def _forked() -> None:
    global _digits
    _generator.seed()
    _digits = ""  # the parent will use them


os.register_at_fork(after_in_child=_forked)
