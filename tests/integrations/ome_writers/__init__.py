"""ome-writers over our backend: its own suite, and what that does not ask for."""
