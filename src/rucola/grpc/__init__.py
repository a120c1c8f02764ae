"""gRPC calls for servers, over ``http2``: messages with a length, deadlines, status and trailers.

``GrpcServer`` listens and offers methods, each of which one handler serves. The package knows no protobuf, except for
the two services that every gRPC server offers: health and reflection. For example::

    import time

    from rucola.grpc.methods import UnaryMethod
    from rucola.grpc.server import GrpcServer

    echo = UnaryMethod(lambda call, request: request)
    server = GrpcServer({b"/flights.Echo/Say": echo}, "127.0.0.1", 0, time.monotonic)
    await server.start()
    print(f"clients connect to {server.address}")
    await server.stop()
"""
