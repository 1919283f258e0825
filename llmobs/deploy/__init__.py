"""Running llmobs: containers, compose, Kubernetes, systemd."""

from __future__ import annotations

from llmobs.deploy import compose, kubernetes, kustomizations, systemd
from llmobs.deploy.patch import patch
from llmobs.deploy.settings import load
from llmobs.generate import GENERATORS, Files, Options, generate

__all__ = ["files", "patch"]


def files(options: Options) -> Files:
    """Return what runs llmobs: everything below ``deploy/``, or with ``--for`` what one platform needs, complete.

    A compose project and a kustomization mount or include the files of other generators; with ``--for`` these come
    along, so that the output folder stands on its own.
    """
    settings = load(options.config, options.extra)
    platform = dict(options.extra).get("for")
    made: dict[str, str] = {}
    if platform in (None, "compose"):
        made[compose.PATH] = compose.text(settings)
    if platform in (None, "k8s"):
        made |= kubernetes.files(settings)
        made |= _kustomizations(options)
    if platform in (None, "systemd"):
        made |= systemd.files(settings)
    if platform in ("compose", "k8s"):
        for kind in ("collector", "alerts", "dashboards"):
            if kind in GENERATORS:
                made |= generate(kind, Options(config=options.config))
    return made


def _kustomizations(options: Options) -> dict[str, str]:
    plain = Options(config=options.config)
    made = {}
    if "dashboards" in GENERATORS:
        names = [n.removeprefix("dashboards/") for n in generate("dashboards", plain) if n.endswith(".json")]
        made["dashboards/kustomization.yaml"] = kustomizations.dashboards(names)
    if "alerts" in GENERATORS:
        names = [n.removeprefix("alerts/") for n in generate("alerts", plain) if "prometheusrule" in n]
        made["alerts/kustomization.yaml"] = kustomizations.rules(names)
    return made
