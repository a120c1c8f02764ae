"""The messages, enums and methods of ``apache.rocketmq.v2``, with their field numbers; ``grpc.schema`` has the form."""

from __future__ import annotations

from rucola.grpc.schema import Package, Rpc

_MESSAGES = """
Resource: resource_namespace 1 s, name 2 s
Address: host 1 s, port 2 i
Endpoints: scheme 1 AddressScheme, addresses* 2 Address
Broker: name 1 s, id 2 i, endpoints 3 Endpoints
MessageQueue: topic 1 Resource, id 2 i, permission 3 Permission, broker 4 Broker, accept_message_types* 5 MessageType
FilterExpression: type 1 FilterType, expression 2 s
SubscriptionEntry: topic 1 Resource, expression 2 FilterExpression
Assignment: message_queue 1 MessageQueue
Status: code 1 Code, message 2 s
RetryPolicy: max_attempts 1 i, (strategy: exponential_backoff 2 ExponentialBackoff,
    customized_backoff 3 CustomizedBackoff)
ExponentialBackoff: initial 1 D, max 2 D, multiplier 3 f
CustomizedBackoff: next* 1 D
Digest: type 1 DigestType, checksum 2 s
DeadLetterQueue: topic 1 s, message_id 2 s
Message: topic 1 Resource, user_properties 2 map, system_properties 3 SystemProperties, body 4 y
SystemProperties: tag? 1 s, keys* 2 s, message_id 3 s, body_digest 4 Digest, body_encoding 5 Encoding,
    message_type 6 MessageType, born_timestamp 7 T, born_host 8 s, store_timestamp? 9 T, store_host 10 s,
    delivery_timestamp? 11 T, receipt_handle? 12 s, queue_id 13 i, queue_offset? 14 l, invisible_duration? 15 D,
    delivery_attempt? 16 i, message_group? 17 s, trace_context? 18 s, orphaned_transaction_recovery_duration? 19 D,
    dead_letter_queue? 20 DeadLetterQueue, lite_topic? 21 s, priority? 22 i

QueryRouteRequest: topic 1 Resource, endpoints 2 Endpoints
QueryRouteResponse: status 1 Status, message_queues* 2 MessageQueue
SendMessageRequest: messages* 1 Message
SendResultEntry: status 1 Status, message_id 2 s, transaction_id 3 s, offset 4 l, recall_handle 5 s
SendMessageResponse: status 1 Status, entries* 2 SendResultEntry
QueryAssignmentRequest: topic 1 Resource, group 2 Resource, endpoints 3 Endpoints
QueryAssignmentResponse: status 1 Status, assignments* 2 Assignment
ReceiveMessageRequest: group 1 Resource, message_queue 2 MessageQueue, filter_expression 3 FilterExpression,
    batch_size 4 i, invisible_duration? 5 D, auto_renew 6 b, long_polling_timeout? 7 D, attempt_id? 8 s
ReceiveMessageResponse: (content: status 1 Status, message 2 Message, delivery_timestamp 3 T)
AckMessageEntry: message_id 1 s, receipt_handle 2 s, lite_topic? 3 s
AckMessageRequest: group 1 Resource, topic 2 Resource, entries* 3 AckMessageEntry
AckMessageResultEntry: message_id 1 s, receipt_handle 2 s, status 3 Status
AckMessageResponse: status 1 Status, entries* 2 AckMessageResultEntry
ForwardMessageToDeadLetterQueueRequest: group 1 Resource, topic 2 Resource, receipt_handle 3 s, message_id 4 s,
    delivery_attempt 5 i, max_delivery_attempts 6 i, lite_topic? 7 s
ForwardMessageToDeadLetterQueueResponse: status 1 Status
HeartbeatRequest: group? 1 Resource, client_type 2 ClientType
HeartbeatResponse: status 1 Status
EndTransactionRequest: topic 1 Resource, message_id 2 s, transaction_id 3 s, resolution 4 TransactionResolution,
    source 5 TransactionSource, trace_context 6 s
EndTransactionResponse: status 1 Status
PrintThreadStackTraceCommand: nonce 1 s
ReconnectEndpointsCommand: nonce 1 s
ThreadStackTrace: nonce 1 s, thread_stack_trace? 2 s
VerifyMessageCommand: nonce 1 s, message 2 Message
VerifyMessageResult: nonce 1 s
RecoverOrphanedTransactionCommand: message 1 Message, transaction_id 2 s
NotifyUnsubscribeLiteCommand: lite_topic 1 s
Publishing: topics* 1 Resource, max_body_size 2 i, validate_message_type 3 b
Subscription: group? 1 Resource, subscriptions* 2 SubscriptionEntry, fifo? 3 b, receive_batch_size? 4 i,
    long_polling_timeout? 5 D, lite_subscription_quota? 6 i, max_lite_topic_size? 7 i
UA: language 1 Language, version 2 s, platform 3 s, hostname 4 s
Metric: on 1 b, endpoints? 2 Endpoints
Settings: client_type? 1 ClientType, access_point? 2 Endpoints, backoff_policy? 3 RetryPolicy, request_timeout? 4 D,
    (pub_sub: publishing 5 Publishing, subscription 6 Subscription), user_agent 7 UA, metric 8 Metric,
    client_properties 9 map
TelemetryCommand: status? 1 Status, (command: settings 2 Settings, thread_stack_trace 3 ThreadStackTrace,
    verify_message_result 4 VerifyMessageResult,
    recover_orphaned_transaction_command 5 RecoverOrphanedTransactionCommand,
    print_thread_stack_trace_command 6 PrintThreadStackTraceCommand, verify_message_command 7 VerifyMessageCommand,
    reconnect_endpoints_command 8 ReconnectEndpointsCommand,
    notify_unsubscribe_lite_command 9 NotifyUnsubscribeLiteCommand)
NotifyClientTerminationRequest: group? 1 Resource
NotifyClientTerminationResponse: status 1 Status
ChangeInvisibleDurationRequest: group 1 Resource, topic 2 Resource, receipt_handle 3 s, invisible_duration 4 D,
    message_id 5 s, lite_topic? 6 s, suspend? 7 b
ChangeInvisibleDurationResponse: status 1 Status, receipt_handle 2 s
PullMessageRequest: group 1 Resource, message_queue 2 MessageQueue, offset 3 l, batch_size 4 i,
    filter_expression 5 FilterExpression, long_polling_timeout 6 D
PullMessageResponse: (content: status 1 Status, message 2 Message, next_offset 3 l)
UpdateOffsetRequest: group 1 Resource, message_queue 2 MessageQueue, offset 3 l
UpdateOffsetResponse: status 1 Status
GetOffsetRequest: group 1 Resource, message_queue 2 MessageQueue
GetOffsetResponse: status 1 Status, offset 2 l
QueryOffsetRequest: message_queue 1 MessageQueue, query_offset_policy 2 QueryOffsetPolicy, timestamp? 3 T
QueryOffsetResponse: status 1 Status, offset 2 l
RecallMessageRequest: topic 1 Resource, recall_handle 2 s
RecallMessageResponse: status 1 Status, message_id 2 s
OffsetOption: (offset_type: policy 1 OffsetOption.Policy, offset 2 l, tail_n 3 l, timestamp 4 l)
SyncLiteSubscriptionRequest: action 1 LiteSubscriptionAction, topic 2 Resource, group 3 Resource, lite_topic_set* 4 s,
    version? 5 l, offset_option? 6 OffsetOption
SyncLiteSubscriptionResponse: status 1 Status
"""

_ENUMS = """
TransactionResolution: TRANSACTION_RESOLUTION_UNSPECIFIED 0, COMMIT 1, ROLLBACK 2
TransactionSource: SOURCE_UNSPECIFIED 0, SOURCE_CLIENT 1, SOURCE_SERVER_CHECK 2
Permission: PERMISSION_UNSPECIFIED 0, NONE 1, READ 2, WRITE 3, READ_WRITE 4
FilterType: FILTER_TYPE_UNSPECIFIED 0, TAG 1, SQL 2
AddressScheme: ADDRESS_SCHEME_UNSPECIFIED 0, IPv4 1, IPv6 2, DOMAIN_NAME 3
MessageType: MESSAGE_TYPE_UNSPECIFIED 0, NORMAL 1, FIFO 2, DELAY 3, TRANSACTION 4, LITE 5, PRIORITY 6
DigestType: DIGEST_TYPE_UNSPECIFIED 0, CRC32 1, MD5 2, SHA1 3
ClientType: CLIENT_TYPE_UNSPECIFIED 0, PRODUCER 1, PUSH_CONSUMER 2, SIMPLE_CONSUMER 3, PULL_CONSUMER 4,
    LITE_PUSH_CONSUMER 5, LITE_SIMPLE_CONSUMER 6
Encoding: ENCODING_UNSPECIFIED 0, IDENTITY 1, GZIP 2
Language: LANGUAGE_UNSPECIFIED 0, JAVA 1, CPP 2, DOT_NET 3, GOLANG 4, RUST 5, PYTHON 6, PHP 7, NODE_JS 8, RUBY 9,
    OBJECTIVE_C 10, DART 11, KOTLIN 12
QueryOffsetPolicy: BEGINNING 0, END 1, TIMESTAMP 2
LiteSubscriptionAction: PARTIAL_ADD 0, PARTIAL_REMOVE 1, COMPLETE_ADD 2, COMPLETE_REMOVE 3
OffsetOption.Policy: LAST 0, MIN 1, MAX 2
Code: CODE_UNSPECIFIED 0, OK 20000, MULTIPLE_RESULTS 30000, BAD_REQUEST 40000, ILLEGAL_ACCESS_POINT 40001,
    ILLEGAL_TOPIC 40002, ILLEGAL_CONSUMER_GROUP 40003, ILLEGAL_MESSAGE_TAG 40004, ILLEGAL_MESSAGE_KEY 40005,
    ILLEGAL_MESSAGE_GROUP 40006, ILLEGAL_MESSAGE_PROPERTY_KEY 40007, INVALID_TRANSACTION_ID 40008,
    ILLEGAL_MESSAGE_ID 40009, ILLEGAL_FILTER_EXPRESSION 40010, ILLEGAL_INVISIBLE_TIME 40011,
    ILLEGAL_DELIVERY_TIME 40012, INVALID_RECEIPT_HANDLE 40013, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE 40014,
    UNRECOGNIZED_CLIENT_TYPE 40015, MESSAGE_CORRUPTED 40016, CLIENT_ID_REQUIRED 40017, ILLEGAL_POLLING_TIME 40018,
    ILLEGAL_OFFSET 40019, ILLEGAL_LITE_TOPIC 40020, INVALID_CLIENT_PROPERTIES 40021, UNAUTHORIZED 40100,
    PAYMENT_REQUIRED 40200, FORBIDDEN 40300, NOT_FOUND 40400, MESSAGE_NOT_FOUND 40401, TOPIC_NOT_FOUND 40402,
    CONSUMER_GROUP_NOT_FOUND 40403, OFFSET_NOT_FOUND 40404, REQUEST_TIMEOUT 40800, PAYLOAD_TOO_LARGE 41300,
    MESSAGE_BODY_TOO_LARGE 41301, MESSAGE_BODY_EMPTY 41302, PRECONDITION_FAILED 42800, TOO_MANY_REQUESTS 42900,
    LITE_TOPIC_QUOTA_EXCEEDED 42901, LITE_SUBSCRIPTION_QUOTA_EXCEEDED 42902,
    REQUEST_HEADER_FIELDS_TOO_LARGE 43100, MESSAGE_PROPERTIES_TOO_LARGE 43101, INTERNAL_ERROR 50000,
    INTERNAL_SERVER_ERROR 50001, HA_NOT_AVAILABLE 50002, NOT_IMPLEMENTED 50100, PROXY_TIMEOUT 50400,
    MASTER_PERSISTENCE_TIMEOUT 50401, SLAVE_PERSISTENCE_TIMEOUT 50402, UNSUPPORTED 50500, VERSION_UNSUPPORTED 50501,
    VERIFY_FIFO_MESSAGE_UNSUPPORTED 50502, FAILED_TO_CONSUME_MESSAGE 60000
"""


def _unary(name: str) -> Rpc:
    return Rpc(name, f"{name}Request", f"{name}Response")


def _streamed(name: str) -> Rpc:
    return Rpc(name, f"{name}Request", f"{name}Response", many_responses=True)


_RPCS = (
    _unary("QueryRoute"),
    _unary("Heartbeat"),
    _unary("SendMessage"),
    _unary("QueryAssignment"),
    _streamed("ReceiveMessage"),
    _unary("AckMessage"),
    _unary("ForwardMessageToDeadLetterQueue"),
    _streamed("PullMessage"),
    _unary("UpdateOffset"),
    _unary("GetOffset"),
    _unary("QueryOffset"),
    _unary("EndTransaction"),
    Rpc("Telemetry", "TelemetryCommand", "TelemetryCommand", many_requests=True, many_responses=True),
    _unary("NotifyClientTermination"),
    _unary("ChangeInvisibleDuration"),
    _unary("RecallMessage"),
    _unary("SyncLiteSubscription"),
)

V2 = Package("apache.rocketmq.v2", "rucola/apache/rocketmq/v2.proto", "MessagingService", _RPCS, _MESSAGES, _ENUMS)
"""The package that clients of RocketMQ 5 speak. Service ``Admin`` of the same package is not served."""
