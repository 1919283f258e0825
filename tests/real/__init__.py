"""The real vLLM for tests: starting it, talking to it, killing parts of it."""
