"""Where files are that users name by a path or a URL: a directory, or an object store."""
