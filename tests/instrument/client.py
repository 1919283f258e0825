"""A client that sends a known mix of requests and notes exactly what came back."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

#: Kinds of requests, by what becomes of them.
KINDS = (
    "completion", "stream", "chat", "chat_stream", "responses", "n_two", "two_prompts", "embedding",
    "invalid", "malformed", "unknown_model", "too_long", "leave_stream", "leave_waiting",
)  # fmt: skip

#: What each kind must be counted as: completed, or failed / rejected with a reason.
EXPECTED = {
    "invalid": "invalid",
    "malformed": "invalid",
    "unknown_model": "invalid",
    "embedding": "invalid",  # a generating model has no such endpoint
    "too_long": "context_length",
    "leave_stream": "abort",
    "leave_waiting": "abort",
}

_IDS = re.compile(r"(cmpl|chatcmpl|resp|msg|rs)[-_][0-9a-zA-Z_-]{8,}|call_[0-9a-f]{8,}|[0-9a-f]{32}")
_VOLATILE = re.compile(r'"(created|created_at|completed_at)": ?[\d.]+')


@dataclass
class Answer:
    """What the client saw. `body` has ids and times replaced, so that two servers can be compared."""

    kind: str
    number: int
    status: int | None
    body: str
    headers: dict[str, str] = field(default_factory=dict)
    request_id: str = ""


def normal(text: str) -> str:
    """Return a response body without what differs between two runs of the same server."""
    return _VOLATILE.sub('"time":0', _IDS.sub("ID", text))


def joined(body: str) -> Any:
    """Return a stream's text, and its frames without those that only carry text.

    vLLM itself merges pieces of text into one frame, the last one if need be, when its client is slow.
    """
    if not body.startswith("data: "):
        return body
    text, frames = "", []
    for frame in body.split("\n\n"):
        data = frame.removeprefix("data: ").strip()
        if not data.startswith("{"):
            frames.append(data)
            continue
        document = json.loads(data)
        only_text = bool(document.get("choices"))
        for choice in document.get("choices", ()):
            delta = choice.get("delta", choice)
            text += delta.pop("content", None) or delta.pop("text", None) or ""
            only_text &= choice["finish_reason"] is None and "role" not in delta
        if not only_text:
            frames.append(document)
    return text, frames


def plan(count: int, *, seed: int = 7, kinds: tuple[str, ...] = KINDS) -> list[tuple[int, str]]:
    """Return `count` numbered kinds, every kind among them, mixed but always the same."""
    mixed = [kinds[i % len(kinds)] for i in range(count)]
    random.Random(seed).shuffle(mixed)
    return list(enumerate(mixed))


def request(kind: str, number: int) -> tuple[str, Any]:
    """Return path and body (or raw text) of one request."""
    base: dict[str, Any] = {"model": "tiny", "max_tokens": 3 + number % 4, "temperature": 0, "ignore_eos": True}
    prompt = f"{number:05d} hello"
    message = [{"role": "user", "content": prompt}]
    bodies: dict[str, tuple[str, Any]] = {
        "completion": ("/v1/completions", {**base, "prompt": prompt}),
        "stream": ("/v1/completions", {**base, "prompt": prompt, "stream": True}),
        "chat": ("/v1/chat/completions", {**base, "messages": message}),
        "chat_stream": ("/v1/chat/completions", {**base, "messages": message, "stream": True}),
        "responses": (
            "/v1/responses",
            {"model": "tiny", "input": prompt, "max_output_tokens": 4, "temperature": 0, "store": False},
        ),
        "n_two": ("/v1/completions", {**base, "prompt": prompt, "n": 2, "temperature": 0.5, "seed": 1}),
        "two_prompts": ("/v1/completions", {**base, "prompt": [prompt, prompt + " again"]}),
        "embedding": ("/v1/embeddings", {"model": "tiny", "input": prompt}),
        "invalid": ("/v1/completions", {**base, "prompt": prompt, "temperature": -3}),
        "malformed": ("/v1/completions", '{"model": "tiny", "prompt": '),
        "unknown_model": ("/v1/completions", {**base, "model": "nobody", "prompt": prompt}),
        "too_long": ("/v1/completions", {**base, "prompt": "x" * 1500}),
        "leave_stream": ("/v1/completions", {**base, "prompt": prompt, "stream": True, "max_tokens": 900}),
        "leave_waiting": ("/v1/completions", {**base, "prompt": prompt, "max_tokens": 900}),
    }
    return bodies[kind]


async def send(session: aiohttp.ClientSession, url: str, number: int, kind: str, **headers: str) -> Answer:
    """Send one request and read, or leave, as its kind says."""
    path, body = request(kind, number)
    data = body if isinstance(body, str) else json.dumps(body)
    head = {"Content-Type": "application/json", "X-Request-Id": f"req-{number:05d}", **headers}
    answer = Answer(kind, number, None, "", request_id=head["X-Request-Id"])
    if kind == "leave_waiting":
        await _send_and_leave(url, path, data, head)
        return answer
    if kind == "leave_stream":
        async with session.post(url + path, data=data, headers=head) as response:
            await response.content.readany()
            answer.status = response.status
            response.close()
        return answer
    await _read(session, url + path, data, head, answer)
    return answer


async def _send_and_leave(url: str, path: str, data: str, head: dict[str, str]) -> None:
    """Send a whole request over a socket of its own, wait a little, and close it."""
    host, _, port = url.removeprefix("http://").partition(":")
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(data)}",
        *(f"{k}: {v}" for k, v in head.items()),
    ]
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*lines, "", data]).encode())
    await writer.drain()
    await asyncio.sleep(0.3)
    writer.close()


async def _read(session: aiohttp.ClientSession, url: str, data: str, head: dict[str, str], answer: Answer) -> None:
    async with session.post(url, data=data, headers=head) as response:
        answer.status = response.status
        answer.headers = {k.lower(): v for k, v in response.headers.items()}
        answer.body = normal((await response.read()).decode("utf-8", "replace"))


async def run(url: str, work: list[tuple[int, str]], *, concurrency: int = 32) -> list[Answer]:
    """Send all of `work`, at most `concurrency` at a time, and return the answers in the order of their numbers."""
    gate = asyncio.Semaphore(concurrency)
    # A connection of its own per request: a client that leaves closes its connection.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=180)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(number: int, kind: str) -> Answer:
            async with gate:
                try:
                    return await send(session, url, number, kind)
                except (aiohttp.ClientError, OSError) as error:
                    return Answer(kind, number, None, f"{type(error).__name__}")

        answers = await asyncio.gather(*(one(n, k) for n, k in work))
    return sorted(answers, key=lambda a: a.number)


def expected(work: list[tuple[int, str]]) -> Counter[str]:
    """Return how often each outcome must be counted: "completed" or a failure reason."""
    return Counter(EXPECTED.get(kind, "completed") for _, kind in work)
