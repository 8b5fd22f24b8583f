"""Simulated cameras: frames that can be regenerated from a seed, and the loop that sends them."""
