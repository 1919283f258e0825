"""What vLLM says → `EngineSnapshot`, whatever version speaks."""
