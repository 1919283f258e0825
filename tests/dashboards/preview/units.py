"""Figures as Grafana would write them, and its named colours."""

from __future__ import annotations

import math

COLORS = {
    "green": "#56a64b", "light-green": "#96d98d", "yellow": "#e0b400", "orange": "#ff780a", "red": "#e02f44",
    "dark-red": "#ad0317", "light-red": "#ff7383", "blue": "#3274d9", "light-blue": "#8ab8ff", "purple": "#a352cc",
    "text": "#24292e", "transparent": "none",
}  # fmt: skip
PALETTE = (
    "#56a64b", "#e0b400", "#3cb1c4", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#b58b00",
    "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62",
)  # fmt: skip

_SCALES = {
    "bytes": (1024, ("B", "KiB", "MiB", "GiB", "TiB")),
    "Bps": (1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")),
    "short": (1000, ("", " K", " Mil", " Bil", " Tri")),
    "watt": (1000, (" W", " kW", " MW")),
    "joule": (1000, (" J", " kJ", " MJ")),
    "hertz": (1000, (" Hz", " kHz", " MHz", " GHz")),
}
_SUFFIX = {"reqps": " req/s", "ops": " ops/s", "cps": " c/s", "celsius": " °C", "percent": "%"}


def color(name: str) -> str:
    """A named colour as CSS."""
    return COLORS.get(name, name)


def _digits(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    size = abs(value)
    return f"{value:.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def text(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a figure with its unit."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "+Inf" if value > 0 else "−Inf"
    if unit == "percentunit":
        return f"{_digits(value * 100, decimals)}%"
    if unit in ("s", "dtdurations"):
        return _seconds(value, decimals, whole=unit == "dtdurations")
    if unit in _SCALES:
        base, names = _SCALES[unit]
        power = 0
        while abs(value) >= base and power < len(names) - 1:
            value, power = value / base, power + 1
        return f"{_digits(value, decimals)}{names[power]}"
    return f"{_digits(value, decimals)}{_SUFFIX.get(unit, '')}"


def _seconds(value: float, decimals: int | None, *, whole: bool) -> str:
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, name in (
        (1e-3, 1e6, "µs"),
        (1, 1e3, "ms"),
        (60, 1, "s"),
        (3600, 1 / 60, "min"),
        (86400, 1 / 3600, "h"),
    ):
        if size < limit and not (whole and limit < 60):
            return f"{_digits(value * factor, decimals)} {name}"
    return f"{_digits(value / 86400, decimals)} d"


def ticks(low: float, high: float, unit: str, count: int = 4) -> list[float]:
    """Round values between two bounds."""
    if not high > low:
        high = low + 1
    base = 1024 if unit == "bytes" and high - low >= 1024 else 10
    raw = (high - low) / count
    power = base ** math.floor(math.log(raw, base))
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if base == 1024 else (1, 2, 2.5, 5, 10)
    step = next(s * power for s in steps if s * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
