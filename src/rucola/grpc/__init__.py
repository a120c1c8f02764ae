"""gRPC calls for servers, over ``http2``: messages with a length, deadlines, status and trailers.

``GrpcServer`` listens and offers methods, each of which one handler serves. The package knows no protobuf, except for
the two services that every gRPC server offers: health and reflection.
"""
