"""The format of every file on disk: commit log, consume queue, index file, checkpoint, JSON tables. Pure codecs.

For example::

    from rucola.formats.message import decode_messages

    with open(f"./store/commitlog/{0:020d}", "rb") as log:
        size = int.from_bytes(log.read(4), "big")
        log.seek(0)
        print(decode_messages(log.read(size)))
"""
