"""Random ids: unguessable is not needed, unique is.

From a generator of our own, seeded by the operating system: vLLM seeds `random` itself, so that its global generator
gives every server the same ids, and a system call for each request costs as much as the rest of its start.
"""

from __future__ import annotations

import os
import random

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def hexadecimal(digits: int) -> str:
    """Return a random number of that many hexadecimal digits."""
    return f"{_generator.getrandbits(4 * digits):0{digits}x}"


def octets(count: int) -> bytes:
    """Return that many random bytes."""
    return _generator.randbytes(count)
