"""The boards, one module each. Each answers one question from top to bottom, in the order a person asks."""
