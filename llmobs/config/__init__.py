"""Settings: one frozen tree; defaults < file (YAML) < environment < flags.

Environment variables are ``LLMOBS_`` and the path in capitals: ``derive.window_seconds`` is
``LLMOBS_DERIVE_WINDOW_SECONDS``. Unknown keys are an error that names the nearest one.
"""

from llmobs.config.check import complete, mask_url, target_name
from llmobs.config.load import leaves, load, to_dict
from llmobs.config.tree import (
    DeriveSettings,
    DiscoverySettings,
    DnsSettings,
    GpuSettings,
    LogSettings,
    OtlpSettings,
    Settings,
    TargetSettings,
    TlsSettings,
    WebSettings,
)

__all__ = [
    "DeriveSettings",
    "DiscoverySettings",
    "DnsSettings",
    "GpuSettings",
    "LogSettings",
    "OtlpSettings",
    "Settings",
    "TargetSettings",
    "TlsSettings",
    "WebSettings",
    "complete",
    "leaves",
    "load",
    "mask_url",
    "target_name",
    "to_dict",
]
