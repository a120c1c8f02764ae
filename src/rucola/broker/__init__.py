"""The broker: takes messages from producers, keeps them in the store, hands them to consumers."""

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
