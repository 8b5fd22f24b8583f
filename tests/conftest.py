"""What every test may rely on."""

from hypothesis import HealthCheck, settings

# Two cores, often shared: property tests are bounded by their number of examples, never by the clock.
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")

