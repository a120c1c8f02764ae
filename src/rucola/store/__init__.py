"""The message store: commit log, consume queues, index, flush and recovery. It is synchronous and independent of the
network protocol.

For example::

    from rucola.store.offline.offline_store import OfflineStore

    store = OfflineStore("./store")  # MessageStore writes; this reads, also beside a broker
    for message in store.messages("flights", 0, 0, 10):
        print(message.queue_offset, message.body)
    store.close()
"""
