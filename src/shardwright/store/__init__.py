"""The folder of a store: creation, ownership, publication, metadata, frame table, contrast windows."""
