"""What runbooks advise: stopping the bleeding within two minutes, and preventing a repetition with flags.

No step makes a loaded service worse: replicas are taken out one by one, traffic moves before anything restarts, and
evidence is kept first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_K8S = "Kubernetes:\n\n```sh\n{0}\n```\n\n"
_HOST = "Plain host:\n\n```sh\n{0}\n```"


def _both(kubernetes: str, host: str, before: str = "", after: str = "") -> str:
    text = (before + "\n\n" if before else "") + _K8S.format(kubernetes) + _HOST.format(host)
    return text + ("\n\n" + after if after else "")


STOP: Mapping[str, str] = MappingProxyType(
    {
        "down": _both(
            "kubectl get pods -l app=vllm -o wide                 # pending, crashing, or evicted?\n"
            "kubectl describe pod POD | grep -A8 'Last State'      # exit code 137 = killed for memory\n"
            "kubectl rollout undo deployment/vllm                  # only if a release came just before",
            "systemctl status vllm; journalctl -u vllm -n 200\nsystemctl restart vllm",
            "Route the traffic to another model or region if the gateway can; otherwise let it answer 503 with Retry-After "
            "at once instead of letting callers wait.",
            "Do not delete pods that are still loading: each start costs minutes.",
        ),
        "replica": _both(
            "kubectl label pod POD app-                            # out of the Service, the process stays for evidence\n"
            "kubectl get deployment vllm -w                        # wait for the replacement to be ready\n"
            "kubectl delete pod POD                                # then",
            "# take the server out of the load balancer first, then:\nsystemctl restart vllm",
            "Take this one replica out of the traffic, never several at once: the others must carry its load.",
        ),
        "starting": _both(
            "kubectl logs POD -c vllm --tail=50 -f\nkubectl rollout pause deployment/vllm                 # keep the old replicas",
            "journalctl -u vllm -f; nvidia-smi",
            "The old replicas still serve: keep them until the new one is ready. GPU at 0 % and no disk or network traffic "
            "for minutes means a broken weights file or a peer that does not join.",
        ),
        "blind": _both(
            "kubectl get pods -A -l app=vllm -o wide               # do they exist?\n"
            "kubectl get podmonitor,servicemonitor -A | grep llmobs\n"
            "kubectl port-forward POD 9401 & curl -s localhost:9401/metrics | head",
            "curl -s http://localhost:9401/-/healthy; systemctl status llmobs prometheus",
            "First find out whether users are served: send one request through the gateway. If they are, this is a "
            "monitoring fault; if not, go on as for VllmModelDown.",
        ),
        "hang": _both(
            "kubectl label pod POD app-                            # out of the Service at once\n"
            "kubectl exec POD -c vllm -- py-spy dump --pid $(pgrep -f EngineCore | head -1) > stack.txt\n"
            "kubectl exec POD -c vllm -- nvidia-smi > gpu.txt\nkubectl delete pod POD",
            "# out of the load balancer, then:\npy-spy dump --pid $(pgrep -f EngineCore | head -1) > stack.txt\n"
            "nvidia-smi > gpu.txt; systemctl restart vllm",
            "Take it out of the traffic, keep the evidence (a minute), then restart it. Its liveness probe will not: "
            "/health answers 200.",
        ),
        "livelock": _both(
            "kubectl label pod POD app-                            # out of the Service\nkubectl delete pod POD",
            "# out of the load balancer, then:\nsystemctl restart vllm",
            "The request that does not fit must go: restart this replica. It will come back when the same request is "
            "repeated, so lower the limit as below before putting it back.",
        ),
        "overload": _both(
            "kubectl get pods -l app=vllm                          # not ready or hung ones first: replace them\n"
            "kubectl scale deployment/vllm --replicas=N            # N = running now + what the queue needs",
            "# start another server on a free GPU and add it to the load balancer; shed batch traffic at the gateway",
            "Look for replicas that are missing, hung or not ready before adding any. From 50 waiting on, shed load at the "
            "gateway (batch and free tiers first) until a new replica is ready. Never scale down under load: the rest fails too.",
        ),
        "memory": _both(
            "kubectl get pods -l app=vllm -o wide                  # which ones, all or one?\n"
            "kubectl rollout undo deployment/vllm                  # more than 3 a minute after a release: roll back\n"
            "kubectl label pod POD app- && kubectl delete pod POD  # else replace one by one; a restart clears fragmentation",
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv\n# out of the load balancer, then:\nsystemctl restart vllm",
            "Scale the traffic away first, then restart with less admitted: --max-num-seqs down by a third or --max-model-len "
            "by 10 %. Reducing the number of replicas makes the others fail.",
        ),
        "clients": _both(
            "kubectl logs deployment/gateway --since=10m | sort | uniq -c | sort -rn | head   # which caller?\n"
            "# limit that caller at the gateway",
            "tail -n 5000 /var/log/nginx/access.log | awk '{print $1}' | sort | uniq -c | sort -rn | head",
            "Find the caller and limit it at the gateway; the others recover at once. Do not restart anything: the engine is fine.",
        ),
        "prefill": _both(
            "kubectl get pods -l app=vllm\nkubectl scale deployment/vllm --replicas=N            # if the queue is the largest phase",
            "# add a server, or limit the caller with the long prompts at the gateway",
            "Look at the largest phase: queue → capacity as for VllmQueueGrowing; prefill → find the caller with the long "
            "prompts and limit it; cache → route conversations back to the same replica.",
        ),
        "decode": _both(
            "kubectl exec POD -c vllm -- nvidia-smi -q -d PERFORMANCE,CLOCK\nkubectl label pod POD app-                            # one slow replica: out of the Service",
            "nvidia-smi -q -d PERFORMANCE,CLOCK\n# take the slow server out of the load balancer",
            "One replica slow → take it out. All slow → the traffic or the release: shed batch load, or roll back.",
        ),
        "rollback": _both(
            "kubectl rollout undo deployment/CANARY                # or set its weight to 0; leave the old version running\n"
            "kubectl rollout status deployment/CANARY",
            "# set the new server's weight in the load balancer to 0",
            "If a release or a canary came just before: switch the traffic back first, by weight or header. Do not delete its "
            "pods, they hold the evidence.",
        ),
        "routing": _both(
            "kubectl get endpoints -l app=vllm -o wide\n# balance by outstanding requests, or limit the lifetime of connections",
            "# nginx: least_conn; HAProxy: balance leastconn",
            "No hurry while nobody queues. Balance by requests in flight, and close connections after some requests.",
        ),
        "gpu_reset": _both(
            "kubectl cordon NODE\nkubectl drain NODE --ignore-daemonsets --delete-emptydir-data\n"
            "# on the node: nvidia-smi --gpu-reset -i INDEX\nkubectl uncordon NODE",
            "# out of the load balancer, then:\nsystemctl stop vllm && nvidia-smi --gpu-reset -i INDEX && systemctl start vllm",
            "A reset ends every process on the GPU: move the traffic first, drain, then reset.",
        ),
        "gpu_node": _both(
            "kubectl cordon NODE\nkubectl drain NODE --ignore-daemonsets --delete-emptydir-data\n# restart the node; if it comes back, ask for a replacement",
            "# out of the load balancer, then:\nnvidia-bug-report.sh; systemctl reboot",
            "Move the traffic, drain the node, collect nvidia-bug-report.sh, restart it.",
        ),
        "gpu_hot": _both(
            "kubectl cordon NODE                                   # nothing new onto it\nkubectl label pod POD app-                            # the slow replica out of the Service if users notice",
            "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE\nnvidia-smi -i INDEX -pl WATTS                         # a lower limit is steadier than the brake",
            "Take the replica out if its tensor-parallel group slows users; tell the people of the data centre.",
        ),
        "sidecar": _both(
            "kubectl logs POD -c llmobs --tail=100\nkubectl exec POD -c llmobs -- llmobs probe http://localhost:8000",
            "journalctl -u llmobs -n 100; systemctl restart llmobs",
            "Users are not affected. Restarting the sidecar never touches vLLM.",
        ),
        "config": _both(
            "kubectl exec POD -c llmobs -- llmobs config check",
            "llmobs config check",
            "Nothing is burning: correct the setting and generate the rules again.",
        ),
        "nothing": _both(
            "kubectl get pods -l app=vllm",
            "systemctl status vllm llmobs",
            "Nothing is burning; look whether a more urgent alert fires for the same model.",
        ),
    }
)

PREVENT: Mapping[str, str] = MappingProxyType(
    {
        "kv": "**KV cache.** Bytes per token = 2 × layers × kv_heads × head_dim × bytes per element (kv_heads, not attention "
              "heads: with grouped-query attention the difference is eightfold). Capacity: `vllm_kv_cache_capacity_tokens`. "
              "Full-length requests at once = capacity ÷ `--max-model-len`; a model of 32,768 tokens with 262,144 tokens of "
              "KV cache carries 8. Lower `--max-model-len` to what the use case needs, use `--kv-cache-dtype fp8`, or add "
              "replicas.",
        "seqs": "**`--max-num-seqs`.** About twice the mean concurrency, at most what the KV cache carries: capacity ÷ mean "
                "tokens per request (prompt + output). 262,144 tokens ÷ 2,048 = 128. Higher values only preempt.",
        "batch": "**`--max-num-batched-tokens`.** Bounds the prefill that a decode step waits for: larger lifts throughput and "
                 "the tail of inter-token latency together. Where tokens stutter, halve it; where prompts queue and tokens flow, "
                 "double it. Chunked prefill is on by default.",
        "memory": "**`--gpu-memory-utilization`.** Memory × utilization − weights − activations = KV cache. 0.82 to 0.85 for "
                  "stability, 0.9 to 0.92 for throughput; 0.93 went out of memory on 24 GB cards. Every further process on the "
                  "GPU takes about 1.2 GB for its context. Keep 15 to 20 % where memory fragments.",
        "queue": "**Admission.** Let the gateway refuse early instead of queueing without end; from vLLM 0.32 on the server can "
                 "limit its queue itself. Scale on `vllm_request_waiting_queue_length` with about 5 per replica, not on CPU or "
                 "GPU utilisation. Time-outs of callers must exceed the queue's and the answer's time together.",
        "health": "**Probes.** A start-up probe as long as loading takes, a liveness probe on progress "
                  "(`vllm_engine_stalled`), not on /health alone. A single-API-server vLLM exits with code 0 after its engine "
                  "died: use `llmobs instrument --engine-death-exit-code 1` so that restart managers notice. Roll out with "
                  "maxUnavailable 0.",
        "host": "**Host.** Memory limit = weights once (page cache not counted) + CPU offload + about 4 GiB; at least 4 CPU cores "
                "for API server and engine; `--api-server-count` for many short requests.",
        "cache": "**Prefix cache.** Keep what changes (time, ids, retrieved passages) at the end of the prompt, route "
                 "conversations to the same replica, and give the KV cache room: blocks are evicted from the least recently "
                 "used end.",
        "speculation": "**Speculative decoding.** Train or choose the draft for the traffic; lower num_speculative_tokens when "
                       "acceptance falls at the later positions; switch it off per model when the speed-up is below 1.",
        "gpu": "**Hardware.** Persistence mode on, the driver of the vendor's production branch, burn-in before production, "
               "temperature and power headroom; watch remapped rows over months.",
        "canary": "**Releases.** 5, 10, 25, 50 % with 15 minutes each, judged by the canary alerts; warm the cache before "
                  "comparing.",
        "sidecar": "**Monitoring.** Two Prometheus replicas, LlmobsWatchdog on a dead-man's switch outside the cluster, the "
                   "scrape interval below `llmobs_peak_interval_seconds`.",
        "slo": "**Objectives.** Set them per model (`alerts.slo`) at a bucket boundary vLLM has, from what users accept and "
               "the last month could keep.",
    }
)  # fmt: skip
