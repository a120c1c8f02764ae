"""The gRPC door for clients of RocketMQ 5 (``apache.rocketmq.v2``)."""
