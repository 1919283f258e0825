"""Every span and attribute that llmobs makes. docs/traces.md explains each; a test holds it and the spans to this."""

from __future__ import annotations

from collections.abc import Mapping

REQUEST = "http.server.request"
PARSE = "llm.request.parse"
BUILD = "llm.prompt.build"
QUEUE = "llm.queue"
PREFILL = "llm.prefill"
DECODE = "llm.decode.loop"
FORMAT = "llm.output.format"
RESPONSE = "http.server.response"
STEP = "llm.decode.step"
ENGINE_STEP = "llm.engine.step"
LAYER = "llm.layer.{i}.forward"

#: The children of the root, in the order of a request's life.
PHASES = (PARSE, BUILD, QUEUE, PREFILL, DECODE, FORMAT, RESPONSE)
SPANS = (REQUEST, *PHASES, STEP, ENGINE_STEP, LAYER)

_PHASE = "the phases"
_ROOT = REQUEST

#: Attribute → (spans that carry it, meaning).
ATTRIBUTES: Mapping[str, tuple[str, str]] = {
    "http.request.method": (_ROOT, "POST"),
    "http.route": (_ROOT, "the endpoint"),
    "url.path": (_ROOT, "the endpoint"),
    "url.scheme": (_ROOT, "http or https, as the server sees it"),
    "http.response.status_code": (f"{_ROOT}, {RESPONSE}", "status that was sent; absent when the client had left"),
    "error.type": (_ROOT, "failure reason, as in the log's `failure_reason`"),
    "exception.type": (f"event `exception` of {_ROOT}", "type of the error in vLLM's answer"),
    "exception.message": (f"event `exception` of {_ROOT}", "what went wrong"),
    "gen_ai.operation.name": (_ROOT, "chat, text_completion, embeddings, …"),
    "gen_ai.provider.name": (_ROOT, "vllm"),
    "gen_ai.request.model": (f"{_ROOT}, {_PHASE}", "served name"),
    "gen_ai.response.model": (_ROOT, "the LoRA adapter, or the served name"),
    "gen_ai.response.finish_reasons": (_ROOT, "one per sequence"),
    "gen_ai.response.time_to_first_chunk": (_ROOT, "seconds from arrival to the first byte of a stream"),
    "gen_ai.usage.input_tokens": (_ROOT, "prompt tokens"),
    "gen_ai.usage.output_tokens": (_ROOT, "generated tokens over all sequences"),
    "gen_ai.usage.cache_read.input_tokens": (_ROOT, "prompt tokens taken from the prefix cache"),
    "gen_ai.request.id": (_ROOT, "vLLM's id of the first sequence's request"),
    "gen_ai.request.stream": (_ROOT, "whether the answer was an event stream"),
    "gen_ai.request.choice.count": (_ROOT, "n, when it is not 1"),
    "gen_ai.request.n": (_ROOT, "n, under vLLM's key"),
    "gen_ai.request.max_tokens": (_ROOT, "sampling parameter in effect"),
    "gen_ai.request.temperature": (_ROOT, "sampling parameter in effect; 0 too"),
    "gen_ai.request.top_p": (_ROOT, "sampling parameter in effect"),
    "gen_ai.request.top_k": (_ROOT, "sampling parameter in effect"),
    "gen_ai.request.frequency_penalty": (_ROOT, "sampling parameter in effect"),
    "gen_ai.request.presence_penalty": (_ROOT, "sampling parameter in effect"),
    "gen_ai.request.seed": (_ROOT, "sampling parameter in effect"),
    "gen_ai.latency.time_to_first_token": (_ROOT, "seconds, vLLM's key"),
    "gen_ai.latency.e2e": (_ROOT, "seconds, vLLM's key"),
    "gen_ai.latency.time_in_queue": (_ROOT, "seconds from queued to scheduled in the engine, vLLM's key"),
    "gen_ai.latency.time_in_model_prefill": (_ROOT, "seconds, vLLM's key"),
    "gen_ai.latency.time_in_model_decode": (_ROOT, "seconds, vLLM's key"),
    "gen_ai.latency.time_in_model_inference": (_ROOT, "seconds, vLLM's key"),
    "llmobs.request_id": (_ROOT, "the caller's X-Request-Id, else ours; as in the log and the response header"),
    "llmobs.outcome": (_ROOT, "completed, failed, rejected"),
    "llmobs.input_length": (f"{_ROOT}, {QUEUE}, {PREFILL}, {DECODE}", "prompt tokens"),
    "llmobs.output_length": (f"{_ROOT}, {DECODE}", "generated tokens"),
    "llmobs.cached_tokens": (f"{_ROOT}, {QUEUE}, {PREFILL}, {DECODE}", "prompt tokens taken from the prefix cache"),
    "llmobs.kv_cache_hit": (f"{_ROOT}, {PREFILL}", "whether any prompt token came from the prefix cache"),
    "llmobs.kv_cache_usage_ratio": (_ROOT, "used KV blocks / all at arrival, 0–1"),
    "llmobs.queue_length": (_ROOT, "requests waiting at arrival"),
    "llmobs.running": (_ROOT, "requests running at arrival"),
    "llmobs.preemptions": (f"{_ROOT}, {DECODE}", "how often it was preempted"),
    "llmobs.spec_acceptance_ratio": (_ROOT, "accepted / drafted tokens, 0–1"),
    "llmobs.sequences": (_ROOT, "sequences in the engine"),
    "llmobs.lora": (_ROOT, "LoRA adapter"),
    "llmobs.prompt_near_limit": (_ROOT, "true when the prompt took more than 90 % of the context"),
    "llmobs.prompt_outlier": (_ROOT, "true when the prompt was far longer than this client's usual"),
    "llmobs.label.*": (_ROOT, "the labels in LLMOBS_TRACE_LABELS"),
    "llmobs.e2e_us": (_ROOT, "whole microseconds from arrival to the last byte"),
    "llmobs.ttft_us": (_ROOT, "whole microseconds from arrival to the first token"),
    "llmobs.queue_us": (_ROOT, "whole microseconds from queued to scheduled in the engine"),
    "llmobs.prefill_us": (_ROOT, "whole microseconds from scheduled to the first token"),
    "llmobs.decode_us": (_ROOT, "whole microseconds from the first to the last token"),
    "llmobs.time_per_output_token_us": (_ROOT, "whole microseconds of decode per token after the first"),
    "llmobs.detail": (DECODE, "true when the request has token detail"),
    "llmobs.steps": (DECODE, "decode steps of the first sequence; with token detail"),
    "llmobs.tokens.dropped": (DECODE, "decode steps left out of the token detail"),
    "token_index": (f"{STEP}; {PREFILL} with token detail", "position of the step's first token, from 0"),
    "token_id": (f"{STEP}; {PREFILL} with token detail", "id of that token"),
    "token_ids": (STEP, "all tokens of the step when they are several"),
    "token_bucket": (f"{STEP}; {PREFILL} with token detail", "0, 1, 2-5, 6-20, 21-50, 51-100, 101-500, 501+"),
    "kv_cache_hit": (STEP, "false when the step recomputed the context after a preemption"),
    "speculative_accepted": (STEP, "whether draft tokens were accepted; only with speculative decoding"),
    "speculative_accepted_tokens": (STEP, "how many; only with speculative decoding"),
    "logprob": (f"{STEP}; {PREFILL} with token detail", "log-probability of the token, when the request asked for any"),
    "logprob_max": (STEP, "highest log-probability, when the request asked for alternatives"),
    "logit": (STEP, "in place of logprob where --logprobs-mode gives logits"),
    "logit_max": (STEP, "in place of logprob_max there"),
    "llmobs.slow": (STEP, "true when it took more than three times the mean step before it"),
    "llmobs.step.index": (ENGINE_STEP, "number of the step in this worker, from 1"),
    "llmobs.step.requests": (ENGINE_STEP, "requests in the batch"),
    "llmobs.step.prefill_requests": (ENGINE_STEP, "those of them that were new in this step"),
    "llmobs.step.tokens": (ENGINE_STEP, "tokens scheduled"),
    "llmobs.step.request_ids": (ENGINE_STEP, "the engine's request ids, at most 64"),
    "llmobs.step.request_ids.dropped": (ENGINE_STEP, "ids left out"),
    "llmobs.engine": (ENGINE_STEP, "index of the data-parallel engine"),
    "llmobs.rank": (ENGINE_STEP, "rank of the worker"),
    "llmobs.clock": (ENGINE_STEP, "wall, or cuda_event: exact durations, offset known to the launch of the step"),
    "llmobs.layer.index": (LAYER, "index of the decoder layer in the model"),
}  # fmt: skip
