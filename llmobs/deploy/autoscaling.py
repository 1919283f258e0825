"""More replicas when requests wait: an HPA through prometheus-adapter, or a KEDA ScaledObject.

Both ask the same question, and the answer is **one number or nothing**, per namespace and model: a scaler that gets
one series per pod refuses them, and one that reads "nothing" as zero scales a loaded service down exactly when its
metrics are gone.
"""

from __future__ import annotations

from llmobs.collector.text import Noted, Value
from llmobs.deploy.settings import Settings
from llmobs.deploy.workload import metadata

_WHY_PEAK = (
    "The _peak twin is the most that waited since the last scrape: a queue that fills and drains between two scrapes\n"
    "is load too."
)


def waiting(selector: str) -> str:
    """Return the PromQL for the requests waiting for one model, over all replicas that are up: one element or none.

    Ranks of one pod add up, the same rank seen by two scrapers counts once. Replicas that are still starting or gone
    have no series, so that only recent pods count.
    """
    peak = f"vllm_request_waiting_queue_length_peak{{{selector}}}"
    return f"sum(max by (namespace, pod, target, engine) ({peak}))"


def selector(settings: Settings) -> str:
    """Return the label matchers of this namespace and model."""
    return f'namespace="{settings.namespace}", model_name="{settings.model_name}"'


def hpa(settings: Settings) -> dict[str, Value]:
    """Return the HorizontalPodAutoscaler on the external metric."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": settings.name},
            "minReplicas": 1,
            "maxReplicas": settings.max_replicas,
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": Noted(_WHY_PEAK, {"name": metric_name(settings)}),
                        "target": Noted(
                            "Waiting requests per replica. More than this many, and another replica helps more than\n"
                            "patience.",
                            {"type": "AverageValue", "averageValue": str(settings.waiting_per_replica)},
                        ),
                    },
                }
            ],
            "behavior": behaviour(),
        },
    }


def metric_name(settings: Settings) -> str:
    """Return what prometheus-adapter calls the metric.

    Each model has a metric of its own, because its name may hold characters that cannot stand in a metric selector.
    """
    model = "".join(c if c.isalnum() else "_" for c in settings.model_name.lower())
    return f"llmobs_requests_waiting_{model}"


def behaviour() -> Value:
    """Return how fast to follow: up at once but not on one spike, down slowly."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": Noted(
                "The peak makes every spike visible, and this is the answer to it: a replica is added when the queue\n"
                "was too long during the whole minute, not for a burst that is gone before the weights are loaded.",
                60,
            ),
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": Noted(
                "Loading takes minutes, so giving a replica up is expensive: ten quiet minutes first, then one by one.",
                600,
            ),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}],
        },
    }


def adapter_rules(settings: Settings) -> dict[str, Value]:
    """Return the configuration of prometheus-adapter that offers the metric; merge its rule into your adapter's."""
    chosen = f'<<.LabelMatchers>>, model_name="{settings.model_name}"'
    rule = "\n".join(
        [
            "externalRules:",
            "  # One element per namespace, for one model. No data stays no data: the HPA keeps the replicas it has.",
            f"  - seriesQuery: 'vllm_request_waiting_queue_length_peak{{model_name=\"{settings.model_name}\"}}'",
            "    resources:",
            "      overrides:",
            "        namespace: {resource: namespace}",
            "    name:",
            f"      as: {metric_name(settings)}",
            f"    metricsQuery: '{waiting(chosen)}'",
            "",
        ]
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "llmobs-adapter-rules", "labels": {"app.kubernetes.io/part-of": "llmobs"}},
        "data": {"config.yaml": rule},
    }


def scaled_object(settings: Settings) -> dict[str, Value]:
    """Return the KEDA ScaledObject."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "scaleTargetRef": {"name": settings.name},
            "minReplicaCount": Noted(
                "Not 0: with no replica nothing reports a queue, so nothing would ever scale up again. Scaling to\n"
                "zero needs a signal from the gateway in front; see docs/guides/kubernetes.md.",
                1,
            ),
            "maxReplicaCount": settings.max_replicas,
            "pollingInterval": 15,
            "fallback": Noted(
                "Three polls without an answer: keep at least what runs now, rather than falling to the minimum.",
                {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"},
            ),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behaviour()}},
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": "http://prometheus.monitoring.svc:9090",
                        "query": Noted(_WHY_PEAK, waiting(selector(settings))),
                        "threshold": str(settings.waiting_per_replica),
                        "ignoreNullValues": Noted(
                            'The default, "true", reads an empty answer as 0 and scales a loaded service down when\n'
                            "its metrics are gone.",
                            "false",
                        ),
                    },
                }
            ],
        },
    }
