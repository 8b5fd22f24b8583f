"""YAML to frozen models, and the plan derived from them. Nothing else knows YAML."""
