"""POP: keeps track of which client holds a popped message and for how long, and revives messages that were not
acknowledged.

- ``processor`` serves pops: ``checks`` and ``request_age`` refuse some, ``queue_walk`` chooses the queues, ``read``
  takes messages from them, and ``hold`` keeps the request if there are none; it has the table of its states.
- ``ack_processor`` serves acknowledgements, which ``ack_buffer`` collects and ``ack_journal`` keeps. ``look_processor``
  serves what looks for messages without popping them.
- ``receipt``, ``pop_offsets`` and ``revive_log`` have what is known of popped messages, and ``order_info`` and
  ``order_locks`` of those that were popped in order. ``revive_service`` delivers again what nobody acknowledged.
"""
