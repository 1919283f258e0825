"""What llmobs costs, measured. `python -m benchmarks` lists them; the tables are in `docs/performance.md`."""
