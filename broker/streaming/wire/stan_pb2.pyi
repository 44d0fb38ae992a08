from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW_ONLY: _ClassVar[StartPosition]
    LAST_RECEIVED: _ClassVar[StartPosition]
    TIME_DELTA_START: _ClassVar[StartPosition]
    SEQUENCE_START: _ClassVar[StartPosition]
    FIRST: _ClassVar[StartPosition]
NEW_ONLY: StartPosition
LAST_RECEIVED: StartPosition
TIME_DELTA_START: StartPosition
SEQUENCE_START: StartPosition
FIRST: StartPosition

class ConnectRequest(_message.Message):
    __slots__ = ("client_id", "heartbeat_inbox", "protocol", "conn_id", "ping_interval", "ping_max_out")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INBOX_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_MAX_OUT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    heartbeat_inbox: str
    protocol: int
    conn_id: bytes
    ping_interval: int
    ping_max_out: int
    def __init__(self, client_id: _Optional[str] = ..., heartbeat_inbox: _Optional[str] = ..., protocol: _Optional[int] = ..., conn_id: _Optional[bytes] = ..., ping_interval: _Optional[int] = ..., ping_max_out: _Optional[int] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("pub_prefix", "sub_requests", "unsub_requests", "close_requests", "error", "sub_close_requests", "ping_requests", "ping_interval", "ping_max_out", "protocol", "public_key")
    PUB_PREFIX_FIELD_NUMBER: _ClassVar[int]
    SUB_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNSUB_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUB_CLOSE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_MAX_OUT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    pub_prefix: str
    sub_requests: str
    unsub_requests: str
    close_requests: str
    error: str
    sub_close_requests: str
    ping_requests: str
    ping_interval: int
    ping_max_out: int
    protocol: int
    public_key: str
    def __init__(self, pub_prefix: _Optional[str] = ..., sub_requests: _Optional[str] = ..., unsub_requests: _Optional[str] = ..., close_requests: _Optional[str] = ..., error: _Optional[str] = ..., sub_close_requests: _Optional[str] = ..., ping_requests: _Optional[str] = ..., ping_interval: _Optional[int] = ..., ping_max_out: _Optional[int] = ..., protocol: _Optional[int] = ..., public_key: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("conn_id",)
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    conn_id: bytes
    def __init__(self, conn_id: _Optional[bytes] = ...) -> None: ...

class PingResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class PubMsg(_message.Message):
    __slots__ = ("client_id", "guid", "subject", "reply", "data", "conn_id", "sha256")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    guid: str
    subject: str
    reply: str
    data: bytes
    conn_id: bytes
    sha256: bytes
    def __init__(self, client_id: _Optional[str] = ..., guid: _Optional[str] = ..., subject: _Optional[str] = ..., reply: _Optional[str] = ..., data: _Optional[bytes] = ..., conn_id: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PubAck(_message.Message):
    __slots__ = ("guid", "error")
    GUID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    guid: str
    error: str
    def __init__(self, guid: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class MsgProto(_message.Message):
    __slots__ = ("sequence", "subject", "reply", "data", "timestamp", "redelivered", "redelivery_count", "crc32")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    subject: str
    reply: str
    data: bytes
    timestamp: int
    redelivered: bool
    redelivery_count: int
    crc32: int
    def __init__(self, sequence: _Optional[int] = ..., subject: _Optional[str] = ..., reply: _Optional[str] = ..., data: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., redelivered: bool = ..., redelivery_count: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("subject", "sequence")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    sequence: int
    def __init__(self, subject: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class SubscriptionRequest(_message.Message):
    __slots__ = ("client_id", "subject", "q_group", "inbox", "max_in_flight", "ack_wait_in_secs", "durable_name", "start_position", "start_sequence", "start_time_delta")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    Q_GROUP_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_IN_SECS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_DELTA_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    subject: str
    q_group: str
    inbox: str
    max_in_flight: int
    ack_wait_in_secs: int
    durable_name: str
    start_position: StartPosition
    start_sequence: int
    start_time_delta: int
    def __init__(self, client_id: _Optional[str] = ..., subject: _Optional[str] = ..., q_group: _Optional[str] = ..., inbox: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., ack_wait_in_secs: _Optional[int] = ..., durable_name: _Optional[str] = ..., start_position: _Optional[_Union[StartPosition, str]] = ..., start_sequence: _Optional[int] = ..., start_time_delta: _Optional[int] = ...) -> None: ...

class SubscriptionResponse(_message.Message):
    __slots__ = ("ack_inbox", "error")
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ack_inbox: str
    error: str
    def __init__(self, ack_inbox: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class UnsubscribeRequest(_message.Message):
    __slots__ = ("client_id", "subject", "inbox", "durable_name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    subject: str
    inbox: str
    durable_name: str
    def __init__(self, client_id: _Optional[str] = ..., subject: _Optional[str] = ..., inbox: _Optional[str] = ..., durable_name: _Optional[str] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class CtrlMsg(_message.Message):
    __slots__ = ("MsgType", "ServerID", "Data")
    MSGTYPE_FIELD_NUMBER: _ClassVar[int]
    SERVERID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MsgType: int
    ServerID: str
    Data: bytes
    def __init__(self, MsgType: _Optional[int] = ..., ServerID: _Optional[str] = ..., Data: _Optional[bytes] = ...) -> None: ...
