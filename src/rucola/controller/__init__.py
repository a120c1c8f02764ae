"""The controller: gives the brokers of a group a master, and another one when it dies. Its state is in etcd.

For example::

    from rucola.controller import Controller, ControllerConfig

    controller = Controller(ControllerConfig(etcd_endpoints="http://127.0.0.1:2379", listen_port=0))
    await controller.start()
    print(controller.address)
    await controller.shutdown()
"""

from rucola.controller.config import ControllerConfig
from rucola.controller.controller import Controller

__all__ = ["Controller", "ControllerConfig"]
