"""Run benchmarks by name: `python -m benchmarks NAME …`; without a name, list them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def main() -> int:
    """Run what was asked for; return the exit code."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    wanted = sys.argv[1:]
    unknown = [name for name in wanted if name not in names]
    if not wanted or unknown:
        for name in names:
            module = importlib.import_module(f"benchmarks.{name}")
            if hasattr(module, "main"):
                print(f"{name:16} {(module.__doc__ or '').splitlines()[0]}")
        return 2 if unknown else 0
    for name in wanted:
        print(f"## {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
