"""HTTP/2 for servers: frames, header compression, streams and windows (RFC 9113, RFC 7541). No I/O, no clock.

For example::

    from rucola.http2.connection import Http2Connection
    from rucola.http2.event_space import EventSpace
    from rucola.http2.limits import Http2Limits

    space = EventSpace([b":path"], Http2Limits())
    connection = Http2Connection(space, Http2Limits())
    connection.buffer()[:4] = b"GET "
    print(connection.received(4, now_ms=0), space.rows[0])
"""
