"""What a fleet sends: series, samples, bytes and spans per replica, measured, and worked through for 10 to 1,000.

The real daemon watches the simulated engine; a real Prometheus (in agent mode) scrapes it and writes what it read to a
receiver that counts; a second real Prometheus scrapes the same page under many names and runs the recording rules.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from benchmarks._tools import PAGE, cpu_seconds, page_server, rss_mib, served
from llmobs.generate import Options, generate
from tests.daemon import Daemon, wait_for
from tests.real.server import free_port

SCRAPE_SECONDS = 15
REPLICAS = (10, 100, 1000)
#: Requests per second of one replica in the worked examples, and the share whose tokens are traced.
REQUESTS_PER_SECOND, DETAIL_SHARE = 5.0, 0.01


def main() -> None:
    """Print the tables of docs/guides/scale.md."""
    with tempfile.TemporaryDirectory() as folder, Daemon(Path(folder), None, "--demo", "--scenario", "demo") as daemon:
        wait_for("figures", lambda: b"vllm_gpu_cache_hit_rate{" in daemon.get("/metrics")[1], 60)
        time.sleep(75)  # one window: everything that is derived is there
        page = _fetch(daemon.url)
        replica = _replica(page)
        before, started = cpu_seconds(daemon.process.pid), time.monotonic()
        sent = _remote_write(daemon.url, Path(folder))
        share = (cpu_seconds(daemon.process.pid) - before) / (time.monotonic() - started)
        print(f"sidecar: {share:.1%} of one core at a reading a second, {rss_mib(daemon.process.pid):.0f} MiB RSS")
        print("(the simulated engine runs in the same process and is part of both)\n")
        disk = _disk(page, Path(folder))
        rules = _rules(page, Path(folder))
    _native()
    spans = _spans()
    _print_fleet(replica, sent, disk, rules, spans)


def _native() -> None:
    """Print the series of one replica that is read through vLLM's own /metrics, without the plugin and without GPUs."""
    with served(page_server, PAGE.read_bytes()) as port, tempfile.TemporaryDirectory() as folder:
        target = {"url": f"http://127.0.0.1:{port}", "name": "replica", "interval_seconds": 1, "source": "metrics"}
        with Daemon(Path(folder), {"targets": [target]}, "--no-collector.gpu") as daemon:
            wait_for("figures", lambda: b"vllm_up{" in daemon.get("/metrics")[1], 30)
            time.sleep(5)
            print(
                f"one replica of vLLM 0.32 without the plugin: {len(_series(_fetch(daemon.url)))} series, GPUs apart\n"
            )


def _fetch(url: str) -> str:
    request = urllib.request.Request(url + "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def _series(page: str) -> list[str]:
    return [line.partition(" # ")[0] for line in page.splitlines() if line and not line.startswith("#")]


def _replica(page: str) -> dict[str, float]:
    """Count the series of one replica by kind, and the size of the page."""
    names = Counter(re.match(r"[a-zA-Z_:]+", line).group() for line in _series(page))  # type: ignore[union-attr]
    buckets = sum(n for name, n in names.items() if name.endswith("_bucket"))
    gpu = sum(n for name, n in names.items() if name.startswith("nvidia_gpu_"))
    gpus = len(set(re.findall(r'nvidia_gpu_up\{uuid="([^"]+)"', page))) or 1
    own = sum(n for name, n in names.items() if name.startswith(("llmobs_", "process_")))
    total = sum(names.values())
    size, packed = len(page.encode()), len(gzip.compress(page.encode(), 6))
    print(f"one replica: {total} series ({buckets} of them buckets); {gpu} for {gpus} GPUs, {own} about llmobs itself")
    print(f"page: {size / 1000:.0f} kB, {packed / 1000:.1f} kB with gzip\n")
    engine = total - gpu - own
    return {"engine": engine, "per_gpu": gpu / gpus, "own": own, "total": engine + gpu / gpus + own, "packed": packed}


class _Counting(BaseHTTPRequestHandler):
    """A remote-write receiver that counts requests and bytes."""

    received: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.update(requests=1, bytes=len(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _http(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


@contextlib.contextmanager
def _prometheus(config: dict[str, Any], folder: Path, *arguments: str) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.json").write_text(json.dumps(config))
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.json", f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{url}/-/ready", timeout=1).status == 200)
        return False

    try:
        wait_for("Prometheus", ready, 30)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _query(url: str, expression: str) -> float:
    full = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(full, timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _remote_write(url: str, folder: Path) -> float:
    """Return the bytes per sample that a Prometheus agent writes for this page."""
    seconds = 60
    with _http(_Counting) as port:
        config = {
            "global": {"scrape_interval": "5s"},
            "scrape_configs": [{"job_name": "llmobs", "static_configs": [{"targets": [url.removeprefix("http://")]}]}],
            "remote_write": [{"url": f"http://127.0.0.1:{port}/", "send_exemplars": True}],
        }
        flags = ("--enable-feature=agent,exemplar-storage", f"--storage.agent.path={folder}/agent")
        with _prometheus(config, folder / "a", *flags) as agent:
            time.sleep(seconds)
            metrics = urllib.request.urlopen(f"{agent}/metrics", timeout=5).read().decode()
    total = re.search(r"prometheus_remote_storage_samples_total\{[^}]*\} (\S+)", metrics)
    assert total is not None
    samples = float(total.group(1))
    per_sample = _Counting.received["bytes"] / samples
    sent = _Counting.received["bytes"] / 1000
    print(f"remote write: {samples:.0f} samples in {sent:.0f} kB: {per_sample:.2f} bytes each")
    return per_sample


def _disk(page: str, folder: Path) -> float:
    """Return the bytes per sample in a Prometheus block, for the page at 15 s over two hours, counters moving."""
    lines = [line.rpartition(" ") for line in _series(page)]
    steps = 2 * 3600 // SCRAPE_SECONDS
    start = 1_700_000_000 // 7200 * 7200
    source = folder / "backfill.txt"
    with source.open("w") as out:
        for series, _, value in lines:
            name = re.match(r"[a-zA-Z_:]+", series).group()  # type: ignore[union-attr]
            counter = name.endswith(("_total", "_bucket", "_count", "_sum"))
            for step in range(steps):
                # A counter grows by about a thousandth a step, a gauge wavers: neither is constant, as in life.
                factor = 1 + step / 1000 if counter else 1 + 0.1 * ((step * 7919) % 13 - 6) / 6
                moved = float(value) * factor
                shown = round(moved) if counter and not name.endswith("_sum") else round(moved, 4)
                out.write(f"{series} {shown} {start + step * SCRAPE_SECONDS}\n")
        out.write("# EOF\n")
    target = folder / "blocks"
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    samples = sum(json.loads(p.read_text())["stats"]["numSamples"] for p in target.glob("*/meta.json"))
    shutil.rmtree(target)
    print(f"on disk: {size / samples:.2f} bytes a sample ({samples} samples, index included)\n")
    return float(size / samples)


def _rules(page: str, folder: Path) -> tuple[float, float]:
    """Return (series the recording rules make per replica, and per model) from fleets of two sizes."""
    made = {n: _recorded(page, folder / f"rules-{n}", n) for n in (5, 25)}
    per_replica = (made[25] - made[5]) / 20
    print(f"recording rules: {made[5]:.0f} series for 5 replicas, {made[25]:.0f} for 25: {per_replica:.1f} a replica\n")
    return per_replica, made[5] - 5 * per_replica


def _recorded(page: str, folder: Path, replicas: int) -> float:
    targets = sorted(set(re.findall(r'target="([^"]*)"', page)) - {""})
    uuids = sorted(set(re.findall(r'uuid="([^"]*)"', page)))

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = self.path.rpartition("/")[2]
            body = page
            for old in targets:
                body = body.replace(f'target="{old}"', f'target="replica-{number}"')
            for old in uuids:
                body = body.replace(f'uuid="{old}"', f'uuid="{old[:-4]}{int(number):04}"')
            raw = body.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    for name, text in generate("alerts", Options()).items():
        if name.endswith(".rules.yaml"):
            path = folder / Path(name).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    with _http(Pages) as port:
        address = f"127.0.0.1:{port}"
        jobs = [
            {
                "targets": [f"{address}/{i}"],
                "labels": {
                    "__address__": address,
                    "__metrics_path__": f"/{i}",
                    "instance": f"r{i}",
                    "namespace": "vllm",
                },
            }
            for i in range(replicas)
        ]
        config = {
            "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
            "rule_files": [str(folder / "*.rules.yaml")],
            "scrape_configs": [{"job_name": "llmobs", "static_configs": [_address(j) for j in jobs]}],
        }
        with _prometheus(config, folder, f"--storage.tsdb.path={folder}/data") as url:
            time.sleep(60)
            return _query(url, 'count({__name__=~".+:.+"})')


def _address(job: dict[str, Any]) -> dict[str, Any]:
    labels = dict(job["labels"])
    return {"targets": [labels.pop("__address__")], "labels": labels}


def _spans() -> tuple[float, float, float]:
    """Return spans per request, bytes per span, and spans of a request whose tokens are traced.

    The spans are made by the OpenTelemetry SDK with the names and attributes that docs/tracing.md lists, and encoded
    as OTLP; what they weigh is measured, how many there are is the design's figure.
    """
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("llmobs")
    root = {
        "http.request.method": "POST", "url.path": "/v1/chat/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "Qwen/Qwen3-0.6B",
        "gen_ai.usage.input_tokens": 812, "gen_ai.usage.output_tokens": 240, "gen_ai.request.max_tokens": 512,
        "gen_ai.response.finish_reasons": ("stop",), "gen_ai.latency.time_to_first_token": 0.231,
        "gen_ai.latency.e2e": 4.12, "llmobs.cached_tokens": 512, "llmobs.kv_usage_at_arrival": 0.61,
        "llmobs.queue_length_at_arrival": 3, "llmobs.preemptions": 0, "version": "v7",
    }  # fmt: skip
    names = ("llm.request.parse", "llm.prompt.build", "llm.queue", "llm.prefill", "llm.decode.loop",
             "llm.output.format", "http.server.response")  # fmt: skip
    with tracer.start_as_current_span("http.server.request", attributes=root):
        for name in names:
            with tracer.start_as_current_span(name, attributes={"llmobs.tokens": 240}):
                pass
    request = kept.get_finished_spans()
    size = len(encode_spans(request).SerializeToString()) / len(request)
    print(f"spans: {len(request)} a request, {size:.0f} bytes each as OTLP; 64 more where tokens are traced\n")
    return float(len(request)), size, 64.0


def _print_fleet(
    replica: dict[str, float], sent: float, disk: float, rules: tuple[float, float], spans: tuple[float, float, float]
) -> None:
    per_replica, per_model = rules
    per_request, span_bytes, detail = spans
    head = ("replicas (one GPU each)", "series", "samples/s", "remote write", "disk for 30 days", "recorded series",
            "spans/s, all", "spans/s kept: 2 %, and 1 % with tokens")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for n in REPLICAS:
        series = n * replica["total"]
        rate = series / SCRAPE_SECONDS
        requests = n * REQUESTS_PER_SECOND
        every = requests * per_request
        kept = requests * (0.02 * per_request + DETAIL_SHARE * (per_request + detail))
        cells = (
            f"{n:,}",
            f"{series:,.0f}",
            f"{rate:,.0f}",
            f"{rate * sent / 1000:,.0f} kB/s",
            f"{rate * disk * 86400 * 30 / 1e9:,.0f} GB",
            f"{n * per_replica + per_model:,.0f}",
            f"{every:,.0f} ({every * span_bytes / 1e6:.2f} MB/s)",
            f"{kept:,.0f} ({kept * span_bytes / 1e6:.2f} MB/s)",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
