"""Grafana is not a component that tests may ask for: its tests are collected only where there is one."""

from __future__ import annotations

import os
import shutil

collect_ignore = [] if os.environ.get("GRAFANA_URL") or shutil.which("grafana") else ["test_grafana.py"]
