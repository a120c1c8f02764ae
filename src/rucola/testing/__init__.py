"""Helpers for tests of this package and of its users. Elsewhere in ``src/``, only the laboratory's lesson on crashes
imports them.

For example::

    from rucola.testing.rocketmq import RocketMQ

    with RocketMQ() as rocketmq:
        rocketmq.create_topic("flights")
        print(rocketmq.namesrv)
"""
