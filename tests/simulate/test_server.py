"""The server on a real port: what it answers while it lives, dies, is gone, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from llmobs import stats
from llmobs.config import TargetSettings
from llmobs.engine.evidence import EvidenceReader
from llmobs.errors import ConfigError
from llmobs.simulate import SimulatedServer, load


def go(make: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    """Run an asynchronous test with a client."""

    async def whole() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
            await make(client)

    asyncio.run(whole())


async def status(client: aiohttp.ClientSession, url: str) -> int | str:
    """Return the status of an answer, or "refused"."""
    try:
        async with client.get(url) as response:
            await response.read()
            return response.status
    except aiohttp.ClientConnectionError:
        return "refused"


async def until(client: aiohttp.ClientSession, url: str, wanted: int | str, seconds: float = 10) -> None:
    """Wait until `url` answers like this."""
    found: int | str = ""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = await status(client, url)
        if found == wanted:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{url} answers {found}, not {wanted}")


def test_endpoints() -> None:
    """Everything that vLLM answers beside its generation endpoints is there."""

    async def check(client: aiohttp.ClientSession) -> None:
        async with SimulatedServer("steady-chat", speed=20) as server:
            await asyncio.sleep(0.5)
            assert await status(client, server.url + "/health") == 200
            assert await status(client, server.url + "/ping") == 200
            async with client.get(server.url + "/version") as response:
                assert await response.json() == {"version": "0.32.0"}
            async with client.get(server.url + "/v1/models") as response:
                assert [m["id"] for m in (await response.json())["data"]] == ["demo/chat-8b"]
            async with client.get(server.url + "/stats") as response:
                document = await response.json()
            read = stats.decode(document, taken_at=0, wall_time=document["time"])
            assert read.simulated
            assert read.engines[0].generation_tokens
            assert abs(document["time"] - time.time()) < 2
            async with client.get(server.url + "/metrics") as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=")
                assert "vllm:generation_tokens_total{" in await response.text()

    go(check)


def test_dialect_and_no_stats() -> None:
    """An old vLLM without llmobs: its version, its page, no /stats, no /ping."""

    async def check(client: aiohttp.ClientSession) -> None:
        async with SimulatedServer("steady-chat", dialect_name="0.6.6", serve_stats=False) as server:
            assert await status(client, server.url + "/stats") == 404
            assert await status(client, server.url + "/ping") == 404
            async with client.get(server.url + "/version") as response:
                assert await response.json() == {"version": "0.6.6.post1"}

    go(check)


def test_crash_and_restart(tmp_path: Path) -> None:
    """503 while the engine is dead, refused while nothing runs, and a new instance on the same port afterwards."""

    async def check(client: aiohttp.ClientSession) -> None:
        async with SimulatedServer("oom-crash", speed=15, state_dir=tmp_path, log_file=tmp_path / "log") as server:
            health = server.url + "/health"
            first = server.vllm.process.instance
            assert await status(client, health) == 200
            await until(client, health, 503)
            async with client.get(server.url + "/metrics") as response:
                assert response.status == 200
            await until(client, health, "refused")
            assert await status(client, server.url + "/stats") == "refused"
            await until(client, health, 200)
            async with client.get(server.url + "/stats") as response:
                assert (await response.json())["instance"] != first

    target = TargetSettings(url="http://localhost", state_dir=str(tmp_path), log_file=str(tmp_path / "log"))
    (tmp_path / "log").touch()
    reader = EvidenceReader(target)
    reader.read()
    go(check)
    evidence = reader.read()
    assert {(event.kind, event.evidence) for event in evidence.ooms} == {("cuda", "in_process"), ("cuda", "log")}
    assert [loss.reason for loss in evidence.lost] == ["oom"]
    assert evidence.lost[0].count > 0


def test_kept_alive_connections_die_with_the_process() -> None:
    """A connection that was open before the crash does not outlive it."""

    async def check(_: aiohttp.ClientSession) -> None:
        scenario = dataclasses.replace(load("engine-death"), exit_seconds=0.1, down_seconds=60.0)
        async with SimulatedServer(scenario, speed=30) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(4096), 5):
                    pass
            writer.close()
            assert not server.vllm.listening

    go(check)


def test_hang_says_200() -> None:
    """A hung engine has a healthy server in front of it, whose page does not change."""

    async def check(client: aiohttp.ClientSession) -> None:
        async with SimulatedServer("hang", speed=60) as server:
            await asyncio.sleep(0.6)
            pages = []
            for _ in range(2):
                async with client.get(server.url + "/metrics") as response:
                    text = await response.text()
                pages.append([line for line in text.splitlines() if line.startswith("vllm:")])
                assert await status(client, server.url + "/health") == 200
                await asyncio.sleep(0.3)
            assert pages[0] == pages[1]

    go(check)


def test_loading_at_the_start() -> None:
    """A scenario may begin with a server that still loads: nothing listens on its port until it is done."""

    async def check(client: aiohttp.ClientSession) -> None:
        scenario = dataclasses.replace(load("steady-chat"), load_at_start=True, load_seconds=6.0)
        async with SimulatedServer(scenario, speed=5) as server:
            assert await status(client, server.url + "/health") == "refused"
            await until(client, server.url + "/health", 200)

    go(check)


def test_port_taken() -> None:
    """A port that is in use is a ConfigError that says what to do."""

    async def check(_: aiohttp.ClientSession) -> None:
        async with SimulatedServer("steady-chat") as server:
            with pytest.raises(ConfigError, match=r"cannot listen .*choose another --port"):
                await SimulatedServer("steady-chat", port=server.port).__aenter__()

    go(check)


def test_ipv6() -> None:
    """It listens on IPv6 as well, and its URL has the brackets."""

    async def check(client: aiohttp.ClientSession) -> None:
        async with SimulatedServer("steady-chat", host="::1") as server:
            assert server.url == f"http://[::1]:{server.port}"
            assert await status(client, server.url + "/health") == 200

    go(check)


def test_speed_must_be_positive() -> None:
    """Time cannot stand still or run backwards."""
    with pytest.raises(ConfigError, match="speed"):
        SimulatedServer("steady-chat", speed=0)
