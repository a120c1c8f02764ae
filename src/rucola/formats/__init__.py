"""Every byte on disk: commit log, consume queue, index file, checkpoint, JSON tables. Pure codecs over byte buffers."""
