"""The broker: accepts messages from producers, keeps them in the store, and delivers them to consumers."""

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
