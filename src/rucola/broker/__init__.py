"""The broker: accepts messages from producers, keeps them in the store, and delivers them to consumers.

For example::

    from rucola.broker.broker import Broker
    from rucola.broker.config import BrokerConfig
    from rucola.store.config import MessageStoreConfig

    broker = Broker(BrokerConfig(listen_port=0), MessageStoreConfig(store_path_root_dir="./broker"))
    await broker.start()
    print(broker.address)
    await broker.shutdown()
"""

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
