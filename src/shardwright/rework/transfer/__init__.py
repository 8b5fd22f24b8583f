"""A store sent to another place, a folder, one file or a bucket of S3, and deleted here if it is moved."""
