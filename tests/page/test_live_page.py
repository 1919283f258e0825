"""The live page in a real browser: what it shows, in each state."""

from __future__ import annotations

import re
import time
from typing import Any

import page_states as states
import pytest
from page_browser import requested
from page_daemon import PREFIX

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def test_a_healthy_target_shows_every_number(page: Any) -> None:
    """State, requests, KV cache, hit rate, latencies, tokens and failures are there with their units."""
    page.open(states.healthy)
    assert page.text(".word") == "Ready"
    assert page.text(".name") == "chat-prod-a"
    assert page.text(".since") == "for 3 h 12 min"
    assert "http://chat-prod-a.inference.svc:8000" in page.text(".about")
    assert "vLLM 0.32.0" in page.text(".about")
    assert page.tile("Running").startswith("42 of at most 256")
    assert page.tile("Waiting").startswith("5 peak 8")
    assert page.tile("KV cache used").startswith("74 % of 432k tokens")
    assert page.tile("Prefix cache hit rate").startswith("71 %")
    assert page.tile("Time to first token").startswith("p50 184 ms p95 612 ms")
    assert page.tile("Inter-token latency").startswith("p50 18.3 ms p95 31.2 ms")
    assert page.tile("Decode").startswith("2,024 tok/s")
    assert page.tile("Prefill").startswith("8,412 tok/s")
    assert page.tile("Failed requests").startswith("20 in total abort 17 timeout 3 0 by oom")
    assert "End to end p95\n18.9 s" in page.text(".engine .facts")
    assert page.driver.title == "Ready · chat-prod-a · llmobs"


def test_request_time_is_split_into_phases(page: Any) -> None:
    """The bar's parts are as wide as the shares, the legend and the spoken text say the percentages."""
    page.open(states.healthy)
    assert page.texts(".phases .legend li") == ["queue 4.2 %", "prefill 13 %", "decode 83 %"]
    label = page.js("return document.querySelector('.phases .bar').getAttribute('aria-label')").replace("\u00a0", " ")
    assert label == "Request time: queue 4.2 %, prefill 13 %, decode 83 %"
    time.sleep(0.6)
    widths = page.js("return [...document.querySelectorAll('.phases .part')].map(p => p.getBoundingClientRect().width)")
    assert [round(w / sum(widths), 2) for w in widths] == [0.04, 0.13, 0.83]


def test_gpus_show_memory_load_and_complaints(page: Any) -> None:
    """Memory by owner, utilisation, power, temperature, throttling, Xid, and a lost device with its reason."""
    page.open(states.stalled)
    first, second = page.texts(".gpu")
    assert "Memory 76.9 GiB of 79.7 GiB used (97 %)" in first
    assert "KV budget 26.4 GiB" in first
    assert "reserve 7.96 GiB" in first
    assert "5.86 GiB of the fragmentation reserve is in use. 1.30 GiB belongs to no visible process." in first
    assert "hw thermal, sw power cap" in first
    assert "79 × 1 (3 min 10 s ago)" in first
    assert "91 °C" in first
    assert "612 W of 700 W" in first.replace("\n", " ")
    assert "Not up: lost. It fell off the bus." in second
    assert "Utilisation" not in second


def test_a_stall_is_said_in_words(page: Any) -> None:
    """A stalled target says what that means, shows its failures, and leaves unknown numbers as a dash."""
    page.open(states.stalled)
    assert page.text(".word") == "Stalled"
    assert page.text(".says") == "Work is there, but no token comes out, although health says OK."
    assert page.tile("Inter-token latency").startswith("p50 – p95 –")
    assert page.texts(".phases .legend li") == ["queue –", "prefill –", "decode –"]
    assert page.texts(".chip") == ["timeout 214", "oom 2", "engine dead 1"]
    assert "Out of memory: 2 × GPU (CUDA), 0 × host." in page.text(".problems")


def test_stale_and_unreachable_are_said_plainly(page: Any) -> None:
    """Old numbers are called the last known ones with their age; without a read there are no numbers."""
    page.open(states.unreachable)
    gone, old = page.texts(".target")
    assert gone.startswith("Unreachable\n,\nchat-prod-b")
    assert "Last read failed (refused): chat-prod-b.inference.svc:8000 refused the connection" in gone
    assert "No numbers: they are not known while it cannot be read." in gone
    assert "Running" not in gone
    assert old.startswith("last known:\nReady\n,\nembed-prod")
    assert "Stale: the last good read was 17 s ago, one is due every 5 s." in old
    assert "Partial:" in old
    assert page.driver.title == "2 of 2 in trouble · llmobs"


def test_what_is_not_known_is_never_a_zero(page: Any) -> None:
    """With every number null or absent the page shows dashes and no figure at all."""
    page.open(states.unknown)
    for value in page.texts(".tile .value") + page.texts(".target .facts dd"):
        assert value == "–"
    assert page.texts(".gpu .facts dd")[:2] == ["–", "–"]
    assert "Memory – of – used" in page.text(".gpu")
    assert not any(character.isdigit() for text in page.texts(".tile dd") for character in re.sub("p50|p95", "", text))


def test_simulated_is_labelled(page: Any) -> None:
    """A simulated target and simulated GPUs say so at the top and beside the state."""
    page.open(states.simulated)
    assert page.text("#simulated").startswith("Simulated: this target and the GPUs are not real.")
    assert page.texts(".target .badge") == ["SIMULATED"]
    assert page.text("#gpus-note") == "simulated"


def test_empty_pages_say_why(page: Any) -> None:
    """No target says how to name one; no GPU says the reason and the detail."""
    page.open(states.empty)
    assert page.text("#targets-body").startswith("No targets. Name a vLLM server with --target")
    assert page.text("#gpus-body") == (
        "No GPU numbers: the NVIDIA management library (NVML) is not installed here. (libnvidia-ml.so.1: cannot open)"
    )


def test_old_gpu_numbers_are_called_stale(page: Any) -> None:
    """GPUs that were last read long ago say how long; GPUs that were not read yet say that."""
    page.open(lambda now: states.state(now, [], states.with_gpus(now, age_seconds=95.0)))
    assert page.text("#gpus-note") == "stale: last read 1 min 35 s ago"
    page.open(lambda now: states.state(now, [], states.NO_GPU | {"reason": None, "detail": "not read yet"}))
    assert page.text("#gpus-body") == "No GPU numbers: not read yet."


def test_memory_is_not_called_without_kv_when_the_budget_is_unknown(page: Any) -> None:
    """Without a KV budget all used memory is one part, and its label says just that."""
    page.open(lambda now: states.state(now, [], states.with_gpus(now, states.gpu(now, kv_budget_bytes=None))))
    assert page.texts(".memory .legend li")[:2] == ["used 66.1 GiB", "KV budget –"]


def test_failures_are_red_only_while_they_happen(page: Any) -> None:
    """Old failures are a calm number; a rate above zero now is said in words and marked."""

    def failing(rate: float) -> Any:
        def make(now: float) -> dict[str, Any]:
            engine = states.engine(now, history=states.history(now, failed_per_second=[0.5, 0.0, rate]))
            return states.state(now, [states.target(now, engines=[engine])])

        return make

    page.open(failing(0.0))
    assert page.js("return document.querySelector('.failures').hasAttribute('data-bad')") is False
    page.daemon.make = failing(0.2)
    page.until("return document.querySelector('.failures').hasAttribute('data-bad')")
    assert page.tile("Failed requests").startswith("20 in total, some of them recent")


def test_engines_of_one_target_are_kept_apart(page: Any) -> None:
    """Data-parallel engines have a section each; folded, requests are summed and ratios are not."""
    page.open(states.parallel)
    assert page.texts(".engine h4") == ["llama-3.1-70b-instruct · engine 0", "llama-3.1-70b-instruct · engine 1"]
    running = [int(text.split("\n")[1].split()[0]) for text in page.texts(".tile") if text.startswith("Running")]
    page.click(".toggle")
    shown = page.js("return [...document.querySelectorAll('.cells dd')].map(d => d.textContent)")
    assert int(shown[0]) == sum(running)
    assert shown[3] == "71\u00a0%"


@pytest.mark.parametrize("look", [{"width": 1280}, {"width": 360, "height": 740}], ids=["desktop", "phone"])
def test_hostile_text_stays_text(page: Any, look: dict[str, int]) -> None:
    """Names, labels, errors and codes that look like HTML are shown as they are and never run."""
    page.open(states.hostile, **look)
    page.until_asked()
    assert page.js("return window.pwned") is None
    assert page.js("return document.querySelectorAll('main img, main script, main iframe, main a').length") == 0
    assert '<img src=x onerror="window.pwned=1">' in page.text()
    assert page.texts(".target[data-state=unknown] .says") == ["This page does not know this state; reload it."] * 2
    assert "</script><script>window.pwned=1</script>" in page.text()
    assert page.js("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.console() == []


def test_a_sparkline_breaks_at_a_gap_and_stops_where_the_data_stops(page: Any) -> None:
    """Missing points are never bridged, a lone point is a dot, and old data ends before the right edge."""

    def gaps(now: float) -> dict[str, Any]:
        series = [None] * 100 + [1.0, 2.0, None, 3.0, None, None, 4.0, 4.0, 4.0, 4.0]
        engine = states.engine(now, history=states.history(now - 60, running=series))
        return states.state(now, [states.target(now, engines=[engine])])

    page.open(gaps)
    line = page.js("return document.querySelector('.tile .line').getAttribute('d')")
    runs = line.removeprefix("M").split("M")
    assert [run.count("L") + 1 for run in runs] == [2, 1, 4]
    assert runs[1].endswith("h0")
    last = float(runs[-1].split("L")[-1].split()[0])
    assert last == 540
    label = page.js("return document.querySelector('.tile svg').getAttribute('aria-label')").replace("\u00a0", " ")
    assert label == (
        "Running requests, last 10 minutes: lowest 1, highest 4, last 4 1 min ago, with gaps where nothing was measured"
    )


def test_pointing_at_a_sparkline_tells_the_value_there(page: Any) -> None:
    """The caption shows the value and its age under the pointer, and the range again afterwards."""
    page.open(states.healthy)
    spark = "const s = document.querySelector('.tile svg'), b = s.getBoundingClientRect();"
    before = page.texts(".tile figcaption")[0]
    page.js(spark + "s.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + b.width / 2}))")
    assert page.texts(".tile figcaption")[0].endswith(", 5 min ago")
    page.js(spark + "s.dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.texts(".tile figcaption")[0] == before


def test_the_page_asks_nobody_else_and_works_below_a_prefix(page: Any) -> None:
    """Every request stays below the daemon's own address, and the strict policy blocks none of it."""
    page.open(states.healthy)
    page.until_asked()
    urls = [url for url in requested(page.driver) if not url.startswith(("about:", "data:"))]
    assert urls
    assert all(url.startswith(page.daemon.url) for url in urls)
    assert page.daemon.url.endswith(PREFIX)
    assert page.console() == []
