"""The life of a pull, from its row in a read to its response.

- ``processor`` makes a request of the row, reads the queue, and answers the request or lets it wait.
- ``admission`` decides what the consumer may read, and which messages it wants.
- ``request`` has the request, the table of its states, its one response, and the hold where it waits.

``broker.dispatch_scheduler`` tells the hold of new messages.
"""
