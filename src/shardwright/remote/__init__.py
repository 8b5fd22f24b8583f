"""Buckets and HTTP ranges, behind obstore."""
