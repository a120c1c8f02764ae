"""Who may run now: shares the event loop and the memory of a server among its connections.

A *turn* is one iteration of the event loop. Requests are served in the order of their reads until the time of the turn
is up; the other requests are *postponed*. All modules are for the event loop only.

| question | module |
|---|---|
| Has the turn time for one more request, or one more read? Was the last request *costly*? | ``turn`` |
| Which connection is served next in a later turn, and how long is its *slice*? | ``postponed_reads`` |
| How does long work let others run? | ``steps`` |
| In which order do requests continue that waited for the same event? | ``resumed`` |
| Which requests have a body that takes too long to parse on the event loop? | ``json_bodies`` |
| Why does the server not read from a connection, and when does it read again? | ``read_pauses`` |
| Should the event loop sleep after this turn? | ``linger`` |
| Which large frame gets memory for its next bytes? | ``large_frames`` |
| Which connection is closed when all unsent responses together take too much memory? | ``unsent_bytes`` |
| Which connection is closed because it is one too many? | ``connection_count`` |
| Which connection is closed because it is too slow? | ``connection_watch`` |

No module here knows the class of a connection: each names what it needs. ``broker.paced_work`` repeats the broker's own
work with pauses; it needs the store, which ``remoting`` must not import.
"""
