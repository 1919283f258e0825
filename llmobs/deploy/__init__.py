"""Running llmobs: containers, compose, Kubernetes, systemd."""

from __future__ import annotations

from llmobs.deploy import compose, kubernetes, kustomizations, systemd
from llmobs.deploy.patch import patch
from llmobs.deploy.settings import load
from llmobs.generate import Files, Options, generate

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
        made[compose.PATH] = compose.text(settings, build=platform is None)
    if platform in (None, "k8s"):
        rules = generate("alerts", Options(config=options.config, format="prometheusrule"))
        made |= kubernetes.files(settings, rules["alerts/prometheusrule.yaml"])
        made |= _dashboards(options)
    if platform in (None, "systemd"):
        made |= systemd.files(settings)
    if platform in ("compose", "k8s"):
        for kind in ("collector", "alerts", "dashboards"):
            made |= generate(kind, Options(config=options.config))
    return made


def _dashboards(options: Options) -> dict[str, str]:
    """Return the kustomization in the dashboards' folder, because kustomize reads files only from below one."""
    made = generate("dashboards", Options(config=options.config))
    names = [name.removeprefix("dashboards/") for name in made if name.endswith(".json")]
    return {"dashboards/kustomization.yaml": kustomizations.dashboards(names)}
