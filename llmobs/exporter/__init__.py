"""The daemon: samples targets and GPUs, derives, and publishes the last finished snapshot."""
