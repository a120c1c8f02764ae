"""Value types and constants used by every layer. Imports only ``rucola.errors``.

For example::

    from rucola.common.message import Message

    message = Message("flights", b"UA1545", tags="UA", keys="UA1545", properties={"delay": "11"})
    print(message.properties)
"""
