"""The gRPC door for clients of RocketMQ 5 (``apache.rocketmq.v2``).

``messages`` has the classes of the protocol, made from the table in ``schema``. For example::

    from rucola.proxy import messages

    message = messages.Message(topic=messages.Resource(name="flights"), body=b"UA 1545")
    request = messages.SendMessageRequest(messages=[message]).SerializeToString()
    print(messages.SendMessageRequest.FromString(request).messages[0].topic.name)
"""
