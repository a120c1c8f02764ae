"""The format of every file on disk: commit log, consume queue, index file, checkpoint, JSON tables. Pure codecs."""
