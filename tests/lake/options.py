"""Options of the libraries for an S3 server of the tests, or for a proxy before it."""

from __future__ import annotations

from typing import Any, Protocol


class Endpoint(Protocol):
    """``S3Server`` or ``FaultyS3``."""

    endpoint: str
    access_key: str
    secret: str
    region: str


def environment(s3: Endpoint) -> dict[str, str]:
    """Variables of the environment that deltalake, PyArrow and PyIceberg all read, except the permission of HTTP, which
    is deltalake's.
    """
    return {
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret,
        "AWS_REGION": s3.region,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def delta_options(s3: Endpoint, **more: str) -> dict[str, str]:
    """``storage_options`` of deltalake."""
    return {**environment(s3), **more}


HASTY = {
    "max_retries": "2",
    "retry_timeout": "3s",
    "backoff_config.init_backoff": "10ms",
    "backoff_config.max_backoff": "50ms",
}
"""Options of deltalake that give up after three attempts; by default it gives up after eleven, in about 4 s."""


def arrow_filesystem(s3: Endpoint, **more: Any) -> Any:
    """PyArrow's file system; paths in it begin with the bucket."""
    from pyarrow.fs import S3FileSystem

    scheme, _, host = s3.endpoint.partition("://")
    return S3FileSystem(
        access_key=s3.access_key,
        secret_key=s3.secret,
        region=s3.region,
        scheme=scheme,
        endpoint_override=host,
        **more,
    )


def iceberg_properties(s3: Endpoint) -> dict[str, str]:
    """Properties of a PyIceberg catalog for its files."""
    return {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret,
        "s3.region": s3.region,
    }
