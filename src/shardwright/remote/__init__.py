"""Stores that are no folders: buckets and HTTP ranges, behind obstore, and zip files, here or there."""
