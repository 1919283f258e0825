"""Continuous batching, as vLLM's V1 scheduler does it, in simulated time.

One `Engine` has a waiting queue (first come, first served), a running batch, and a `BlockPool`. A step takes one token
(and its drafts) of every decoding sequence and as much prefill as `max_num_batched_tokens` leaves room for; a prompt
that does not fit is computed in chunks over several steps. When blocks run out, the newest running sequence is
preempted: its blocks go, and it is computed again later, at the head of the queue. How long a step takes follows from
what is in it (`StepTime`); everything else (queue, usage, phases, hit rate, histograms) follows from the steps.

Pure: time comes in through `advance`, chance through a seeded generator; there is no clock and no I/O.

Not modelled: tensor or pipeline parallelism inside an engine, prefill/decode disaggregation, sliding windows and
hybrid KV groups, priority scheduling, beam search and n > 1, CUDA-graph sizes and compilation, the contention of the
API server's event loop, network time, and what the text says. Blocks of a shared prefix appear in the cache when the
prefill of a request ends rather than chunk by chunk, a request that was transferred by a KV connector waits for its
tokens without using blocks, and clients that leave are noticed at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from llmobs.simulate.request import Request
from llmobs.simulate.scenario import EngineSettings
from llmobs.simulate.scheduler import Scheduler
from llmobs.simulate.tally import Tally, position_bucket


class Engine(Scheduler):
    """One engine core. `on_end` is called with (request, time) for every sequence that finished by itself."""

    def __init__(
        self, settings: EngineSettings, tally: Tally, rng: random.Random, on_end: Callable[[Request, float], None]
    ) -> None:
        super().__init__(settings, tally, rng)
        self.slowdown = 1.0
        self.acceptance = 1.0  # factor on the drafts' acceptance
        self.frozen = False
        self.progress_at = 0.0
        self.busy_seconds = 0.0  # spent in steps that are finished
        self.step_weight = 0.0  # Σ step seconds × share of the token budget and batch they used, for power
        self._on_end = on_end
        self._clock = 0.0
        self._ends: float | None = None
        self._began = 0.0
        self._plan: list[tuple[Request, int]] = []

    def submit(self, request: Request, now: float) -> None:
        """Put a request at the end of the queue. The engine must have been advanced to `now`."""
        if not self.in_flight:
            self._clock = self.progress_at = now
        self.waiting.append(request)

    def advance(self, until: float) -> None:
        """Run all steps that end by `until`."""
        while not self.frozen:
            if self._ends is None and not self._begin():
                self._clock = max(self._clock, self._next_ready(until))
                if self._clock >= until:
                    return
                continue
            assert self._ends is not None
            if self._ends > until:
                return
            self._complete(self._ends)

    def thaw(self, now: float) -> None:
        """Go on after a hang: the step that was interrupted ends now."""
        self.frozen = False
        self._clock = max(self._clock, now)
        if self._ends is not None:
            self._ends = max(self._ends, now)

    def drop(self, request: Request, now: float) -> None:
        """Take out a request whose client has left. A hung engine keeps what it was working on."""
        request.left = True
        if request in self.waiting:
            self.waiting.remove(request)
        if self.frozen:
            return
        if request in self.running:
            self.running.remove(request)
            self._let_go(request, now)
        self._publish()

    def abort_all(self, now: float) -> list[Request]:
        """End everything by the engine's own decision, as before a sleep; return what was ended."""
        ended = [*self.running, *self.waiting]
        for request in ended:
            self.drop(request, now)
            self.tally.finished["abort"] += 1
        return ended

    def drop_all_left(self, now: float) -> None:
        """Take out everybody who left while the engine hung."""
        for request in [r for r in self.running if r.left]:
            self.drop(request, now)

    # Scheduling

    def _next_ready(self, until: float) -> float:
        if not self.in_flight:
            return until
        later = [r.ready_at for r in self.waiting if r.ready_at > self._clock]
        return min((*later, until))

    def _begin(self) -> bool:
        if not self.running and not self.waiting:
            return False
        now = self._clock
        budget = self.settings.max_num_batched_tokens
        drafts = self.settings.speculation.tokens
        self._plan = plan = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            missing = request.tokens - request.computed
            count = min(missing, budget)
            if missing == 1 and request.generated and drafts:
                count = min(1 + drafts, budget)
            while not self._reserve(request, count, now):
                victim = self.running.pop()
                self._preempt(victim, now)
                preempted = True
                if victim is request:
                    break
            else:
                plan.append((request, count))
                budget -= count
                index += 1
                continue
            break
        if not preempted and self.waiting:
            self._admit(plan, budget, now)
        if not plan and not preempted:
            return False
        # A step that only threw somebody out has no output, but it takes its time like any other.
        self._began = now
        self._ends = now + self._duration(plan)
        return True

    # Steps

    def _duration(self, plan: list[tuple[Request, int]]) -> float:
        step = self.settings.step
        prefill = decoding = context = 0
        for request, count in plan:
            if request.generated and request.tokens - request.computed == 1:
                decoding += 1
                context += request.computed
            else:
                prefill += count
                context += request.computed // 8
        seconds = (
            step.base_seconds
            + prefill * step.prefill_seconds_per_token
            + decoding * step.decode_seconds_per_sequence
            + context * step.context_seconds_per_token
        )
        if decoding:
            seconds += self.settings.speculation.tokens * step.draft_seconds
        jitter = 1.0 + step.jitter * self._rng.gauss(0.0, 1.0)
        return seconds * self.slowdown * max(0.5, jitter)

    def _complete(self, now: float) -> None:
        tally, settings = self.tally, self.settings
        generated = computed = scheduled = context = 0
        outputs = 0
        for request, count in self._plan:
            scheduled += count
            context += request.computed
            if request.left:
                continue
            decoding = bool(request.generated) and request.tokens - request.computed == 1
            gained = 1
            if decoding:
                gained += self._accepted(request, count - 1)
                request.computed += gained
            else:
                request.computed += count
                if request.computed < request.tokens:
                    continue
                self._share(request)
            if not request.generated:
                computed += self._first_token(request, now)
            else:
                self._next_tokens(request, now)
            outputs += 1
            request.generated += gained
            generated += gained
            if request.generated >= request.output:
                self._finish(request, now)
        seconds = now - self._began
        self.busy_seconds += seconds
        self.step_weight += seconds * min(
            1.0, scheduled / settings.max_num_batched_tokens + 0.55 * len(self._plan) / settings.max_num_seqs
        )
        if settings.mfu_metrics:
            tally.flops += 2 * settings.parameters * scheduled
            tally.read_bytes += 2 * settings.parameters + context * settings.kv_bytes_per_token
            tally.written_bytes += scheduled * settings.kv_bytes_per_token
        if outputs:
            tally.generation_tokens += generated
            tally.step_tokens.observe(computed + generated)
            self.progress_at = now
        self._clock, self._ends, self._plan = now, None, []
        self._publish()

    def _accepted(self, request: Request, drafts: int) -> int:
        """Return how many drafts of one step are kept, and count them."""
        if drafts <= 0:
            return 0
        tally, speculation = self.tally, self.settings.speculation
        chance, accepted = speculation.acceptance * self.acceptance, 0
        limit = min(drafts, request.output - request.generated - 1)
        while accepted < limit and self._rng.random() < chance:
            tally.accepted_at[accepted] += 1
            accepted += 1
            chance *= speculation.decay
        tally.drafts += 1
        tally.draft_tokens += drafts
        tally.accepted += accepted
        return accepted

    def _share(self, request: Request) -> None:
        """Add the blocks of a shared beginning that this request has computed to the family's chain."""
        if not request.held_family or request.shared >= request.family_blocks:
            return
        new = request.family_blocks - request.shared
        if self.pool.size(request.family) == request.shared and request.blocks >= new:
            self.pool.extend(request.family, new)
            request.blocks -= new
            request.shared += new

    def _first_token(self, request: Request, now: float) -> int:
        tally = self.tally
        request.first_token = request.last_token = now
        tally.observe(tally.ttft, now - request.arrival + self.settings.overhead_seconds, request.trace, now)
        tally.steps[0].observe(now - request.first_scheduled)
        computed = request.prompt - request.cached - request.external
        tally.prompt_sources["local_compute"] += computed
        tally.prompt_sources["local_cache_hit"] += request.cached
        tally.prompt_sources["external_kv_transfer"] += request.external
        if self.settings.connector.enabled:
            size = computed * self.settings.kv_bytes_per_token
            tally.offload_bytes["store"] += size
            tally.offload_seconds["store"] += size / self.settings.connector.bytes_per_second
        return computed

    def _next_tokens(self, request: Request, now: float) -> None:
        gap = now - request.last_token
        request.last_token = now
        tally = self.tally
        tally.inter_token.observe(gap)
        tally.observe(tally.steps[position_bucket(request.generated)], gap, request.trace, now)

    def _finish(self, request: Request, now: float) -> None:
        tally = self.tally
        request.done = True
        self.running.remove(request)
        self._let_go(request, now)
        overhead = self.settings.overhead_seconds
        decode = now - request.first_token
        e2e = now - request.arrival + overhead
        tally.finished[request.finish] += 1
        tally.observe(tally.e2e, e2e, request.trace, now)
        tally.queue.observe(request.first_scheduled - request.arrival)
        tally.prefill.observe(request.first_token - request.first_scheduled)
        tally.decode.observe(decode)
        tally.inference.observe(now - request.first_scheduled)
        tally.per_output_token.observe(decode / (request.generated - 1) if request.generated > 1 else 0.0)
        tally.prompt_length.observe(request.prompt)
        tally.generation_length.observe(request.generated)
        tally.max_tokens.observe(request.max_tokens)
        tally.n.observe(1)
        tally.request_preemptions.observe(request.preemptions)
        tally.computed_length.observe(request.prompt - request.cached - request.external)
        self._on_end(request, now)
