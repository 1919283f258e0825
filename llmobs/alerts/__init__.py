"""Alerts, objectives and runbooks as data; `files` renders them."""
