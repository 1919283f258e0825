"""Every packaged scenario reaches the state that it is named for."""

from __future__ import annotations

import dataclasses

import pytest

from llmobs.simulate import SimulatedVllm, facts, load
from llmobs.snapshot import EngineStats, Histogram
from tests.simulate.runs import run, wall


def mean(histogram: Histogram | None) -> float:
    """Return the mean of all observations."""
    assert histogram is not None
    assert histogram.count
    return histogram.sum / histogram.count


def grown(before: EngineStats, after: EngineStats, name: str) -> float:
    """Return the mean of a histogram's observations between two moments."""
    first, second = getattr(before, name), getattr(after, name)
    return (second.sum - first.sum) / (second.count - first.count)


def hit_rate(before: EngineStats, after: EngineStats) -> float:
    """Return hits ÷ queries between two moments."""
    return (after.prefix_hits - before.prefix_hits) / (after.prefix_queries - before.prefix_queries)


def waits(name: str, until: float = 180) -> list[float]:
    """Return the waiting gauge of the first engine over time."""
    return [s.engines[0].waiting or 0 for _, _, s in run(name, until).moments if s is not None]


def test_steady_chat() -> None:
    """No queue, no failures, most of every prompt in the cache."""
    last = run("steady-chat").last
    assert max(waits("steady-chat")) <= 3
    assert not any(last.failed.values())
    assert last.prefix_hits / last.prefix_queries > 0.7


def test_demo_has_all_it_promises() -> None:
    """Within one round there is a queue, a stretch without hits, and a drop of the acceptance."""
    demo = run("demo", 300)
    assert max(waits("demo", 300)[85:125]) > 20
    assert max(waits("demo", 300)[:85]) <= 2
    assert hit_rate(demo.at(20), demo.at(85)) > 0.6
    assert hit_rate(demo.at(210), demo.at(258)) < 0.35
    drafted = [demo.at(t).spec_draft_tokens for t in (40, 85, 217, 270)]
    accepted = [demo.at(t).spec_accepted_tokens for t in (40, 85, 217, 270)]
    good, bad = ((accepted[i + 1] - accepted[i]) / (drafted[i + 1] - drafted[i]) for i in (0, 2))
    assert good > 0.55
    assert bad < 0.35


def test_burst_fills_the_queue_and_drains() -> None:
    """The burst makes a queue, the time after it empties the queue again."""
    queue = waits("burst")
    assert max(queue[:19]) <= 2
    assert max(queue[20:60]) > 60
    assert min(queue[60:138]) <= 2


def test_long_prompts_are_prefill() -> None:
    """More time goes into waiting for the first token than one would ever see with chats."""
    last = run("long-prompts").last
    assert mean(last.prompt_length) > 7000
    assert mean(last.prefill_time) > 20 * mean(run("steady-chat").last.prefill_time)


def test_cache_unfriendly_loses_hits_and_gains_prefill() -> None:
    """The hit rate falls and prefill grows while prompts stay about as long as they were."""
    both = run("cache-unfriendly", 240)
    before, middle, after = both.at(20), both.at(118), both.at(240)
    assert hit_rate(before, middle) > 0.85
    assert hit_rate(both.at(130), after) < 0.02
    assert grown(both.at(140), after, "prefill_time") > 2 * grown(before, middle, "prefill_time")
    assert grown(both.at(140), after, "prompt_length") == pytest.approx(
        grown(before, middle, "prompt_length"), rel=0.25
    )


def test_kv_exhaustion_preempts() -> None:
    """The cache is full, and running requests are thrown out and computed again."""
    last = run("kv-exhaustion").last
    assert max(s.engines[0].kv_cache_usage for _, _, s in run("kv-exhaustion").moments if s) > 0.97
    assert last.preemptions > 10
    assert last.prefix_preempted_queries > 0
    assert last.preemptions_per_request.sum > 0


def test_slow_decode_is_decode_alone() -> None:
    """Inter-token time triples; prompts and outputs are what they were."""
    slow = run("slow-decode")
    before, middle, after = slow.at(10), slow.at(58), slow.at(180)
    ratio = grown(slow.at(75), after, "inter_token_latency") / grown(before, middle, "inter_token_latency")
    assert 2.7 < ratio < 4
    assert not any(after.failed.values())


def test_draft_mismatch() -> None:
    """Acceptance falls from about 77 % to about 32 %."""
    run_ = run("draft-mismatch", 240)

    def acceptance(start: float, end: float) -> float:
        one, two = run_.at(start), run_.at(end)
        return (two.spec_accepted_tokens - one.spec_accepted_tokens) / (two.spec_draft_tokens - one.spec_draft_tokens)

    assert acceptance(5, 118) == pytest.approx(0.77, abs=0.04)
    assert acceptance(122, 240) == pytest.approx(0.32, abs=0.04)


def test_oom_crash() -> None:
    """It dies of memory with requests in flight, is gone, loads, and comes back as a new process."""
    crash = run("oom-crash", 70)
    assert crash.phases()[:5] == ["ready", "dead", "down", "loading", "ready"]
    dead = [s for _, phase, s in crash.moments if phase == "dead" and s]
    assert dead[-1].engines[0].oom == {"cuda": 1, "host": 0}
    assert dead[-1].engines[0].failed["oom"] > 0
    last = crash.moments[-1][2]
    assert last is not None
    assert last.instance != dead[-1].instance
    assert last.start_time > dead[-1].start_time
    assert last.engines[0].generation_tokens < dead[-1].engines[0].generation_tokens


@pytest.mark.parametrize(("name", "reason", "kinds"), [("engine-death", "engine_dead", 0), ("host-oom", "oom", 1)])
def test_engine_death_freezes_the_page(name: str, reason: str, kinds: int) -> None:
    """While the engine is dead nothing on the page moves any more; what was in flight has failed."""
    dead = [s for _, phase, s in run(name, 40, 0.5).moments if phase == "dead" and s]
    assert len(dead) >= 3
    assert dead[0].engines == dead[-1].engines
    assert dead[0].engines[0].failed[reason] > 0
    assert dead[0].engines[0].oom["host"] == kinds


def test_restart_loop() -> None:
    """In two minutes there are at least three different processes."""
    loop = run("restart-loop", 120)
    assert len({s.instance for _, _, s in loop.moments if s}) >= 3
    assert loop.phases().count("dead") >= 3


def test_hang_moves_nothing() -> None:
    """Gauges and counters of the engine stand still with work in them; clients give up in the end."""
    hung = run("hang")
    early, late = hung.at(25), hung.at(180)
    assert early.running == late.running > 0
    assert early.step_tokens == late.step_tokens
    assert early.preemptions == late.preemptions
    assert late.seconds_since_progress > 100
    assert late.failed["timeout"] > 0


def test_a_hang_can_end() -> None:
    """An engine that goes on after a hang serves the clients that are still there."""
    scenario = load("hang")
    event = dataclasses.replace(scenario.events[0], duration=20)
    server = SimulatedVllm(dataclasses.replace(scenario, events=(event,)), wall=wall)
    server.advance(39)
    stuck = facts.snapshot(server, taken_at=0).engines[0]
    server.advance(90)
    later = facts.snapshot(server, taken_at=0).engines[0]
    assert later.generation_tokens > stuck.generation_tokens + 1000
    assert later.seconds_since_progress < 1
    assert server.in_flight < 40


def test_livelock_works_for_nothing() -> None:
    """Preemptions go on and no token comes: not a hang, where nothing moves."""
    stuck = run("livelock")
    one, two = stuck.at(60), stuck.at(180)
    assert two.preemptions > one.preemptions + 20
    assert two.generation_tokens == one.generation_tokens
    assert two.seconds_since_progress > 100
    assert two.waiting > 10
    usage = [s.engines[0].kv_cache_usage for t, _, s in stuck.moments if t > 60 and s]
    assert max(usage) - min(usage) > 0.5


def test_client_timeouts() -> None:
    """Requests fail because clients had waited long enough; the server itself is well."""
    last = run("client-timeouts").last
    assert last.failed["timeout"] > 100
    assert last.finished["stop"] > 100
    assert max(waits("client-timeouts")) > 20


def test_abort_storm() -> None:
    """At second 30 most clients are gone at once."""
    storm = run("abort-storm")
    assert storm.at(29).failed["abort"] == 0
    assert storm.at(31).failed["abort"] >= storm.at(29).running > 5
    assert storm.at(85).failed["abort"] > 2 * storm.at(31).failed["abort"]


def test_admission_rejections() -> None:
    """The queue is never longer than its limit, and what does not fit is counted by reason and as 5xx."""
    last = run("admission-rejections").last
    assert max(waits("admission-rejections")) <= 20
    assert all(count > 0 for count in last.admission_rejections.values())
    assert last.failed["rejected"] == sum(last.admission_rejections.values())
    assert run("admission-rejections").moments[-1][2].http_responses["5xx"] == last.failed["rejected"]


def test_lora_defers() -> None:
    """Two adapters run, the rest waits as deferred."""
    moments = [s.engines[0] for _, _, s in run("lora").moments if s]
    assert max(len(m.lora_running) for m in moments) == 2
    assert max(m.waiting_by_reason["deferred"] for m in moments) > 5
    assert len({a for m in moments for a in (*m.lora_running, *m.lora_waiting)}) == 6


def test_data_parallel_imbalance() -> None:
    """One engine has a queue while the others have none."""
    moments = [s.engines for _, _, s in run("data-parallel-imbalance", 120).moments if s]
    assert moments[-1][0].waiting > 30
    assert max(e.waiting or 0 for engines in moments for e in engines[1:]) <= 2
    assert [e.engine for e in moments[-1]] == ["0", "1", "2", "3"]


def test_sleep() -> None:
    """Asleep: no work, the state says so, and it wakes up again."""
    slept = run("sleep")
    asleep, awake = slept.at(60), slept.at(120)
    assert asleep.sleep_state == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    assert asleep.running == asleep.waiting == 0
    assert awake.sleep_state["awake"] == 1
    assert awake.generation_tokens > asleep.generation_tokens


def test_memory_leak_is_reserved_only() -> None:
    """Reserved memory grows, allocated does not."""
    leak = run("memory-leak")
    one, two = leak.at(20), leak.at(180)
    assert two.worker_memory_allocated == one.worker_memory_allocated
    assert two.worker_memory_reserved["0"] - one.worker_memory_reserved["0"] == pytest.approx(150 * 2e7)


def test_errors() -> None:
    """A fifth of the requests ends with an error, others are refused as the caller's mistakes."""
    last = run("errors").last
    total = sum(last.finished.values())
    assert last.finished["error"] / total == pytest.approx(0.2, abs=0.05)
    assert last.failed["error"] == last.finished["error"]
    assert last.failed["invalid"] > 0
    assert last.failed["context_length"] > 0
    assert last.corrupted > 0


def test_canary_is_worse() -> None:
    """The canary is slower and fails; the stable one is neither."""
    stable, canary = run("canary-pair").last, run(load("canary-pair").canary).last
    assert mean(canary.inter_token_latency) > 1.3 * mean(stable.inter_token_latency)
    assert canary.failed["error"] > 0 == stable.failed["error"]


def test_gpu_fault() -> None:
    """The engine dies right after the Xid error."""
    fault = run("gpu-fault", 90)
    assert fault.server.xids == [(60.0, 79)]
    assert "dead" in fault.phases()


def test_two_models_are_kept_apart() -> None:
    """Both models have their own figures, and the big one is the slow one."""
    last = run("two-models").moments[-1][2]
    small, large = last.engines
    assert (small.model_name, large.model_name) == ("demo/small-3b", "demo/large-70b")
    assert mean(large.e2e_latency) > 5 * mean(small.e2e_latency)
    assert small.e2e_latency.count > 3 * large.e2e_latency.count


def test_healthy_day() -> None:
    """Noon has four times the night's load, and at no hour does anything queue or fail that should not."""
    scenario = load("healthy-day")
    model = scenario.models[0]
    short = dataclasses.replace(model, traffic=dataclasses.replace(model.traffic, day_seconds=1200.0))
    server = SimulatedVllm(dataclasses.replace(scenario, models=(short,)), wall=wall)
    arrived, waiting = [], []
    for second in range(10, 1201, 10):
        server.advance(second)
        arrived.append(server.totals().arrived)
        waiting.append(facts.snapshot(server, taken_at=0).engines[0].waiting)
    night, noon = arrived[19], arrived[69] - arrived[49]
    assert noon > 2.5 * night
    assert max(waiting) <= 3
    failed = facts.snapshot(server, taken_at=0).engines[0].failed
    assert not any(count for reason, count in failed.items() if reason not in ("abort", "invalid"))


def test_all_features_leave_no_fact_empty() -> None:
    """Every fact that a V1 engine can report is there and has moved."""
    stats = run("all-features").last
    never = {"swapped", "cpu_kv_cache_usage", "prefix_hit_rate_lifetime"}  # V0 only
    for field in dataclasses.fields(stats):
        if field.name in never:
            assert not getattr(stats, field.name)
            continue
        assert getattr(stats, field.name) not in (None, {}), field.name
    for name in (
        "preemptions", "prefix_hits", "prefix_preempted_queries", "external_hits", "mm_hits", "corrupted",
        "prompts_near_limit", "prompt_outliers", "spec_accepted_tokens", "flops", "memory_read_bytes",
    ):  # fmt: skip
        assert getattr(stats, name) > 0, name
    for name in ("kv_transfer_time", "kv_block_lifetime", "kv_block_idle_before_evict", "kv_block_reuse_gap"):
        assert getattr(stats, name).count > 0, name
    assert all(stats.prompt_tokens_by_source.values())
    assert len(stats.decode_step_latency) == 8
