"""Errors, receipts and units shared by every room. Standard library only."""
