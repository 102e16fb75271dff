"""How this process is connected to the store: two kinds of channel with the same settings."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from taskstore.v1 import tasks_pb2

from store_service.client.tls import RenewedBlockingChannel, RenewedChannel, Tls
from store_service.client.traced import Traced

if TYPE_CHECKING:
    from store_service.telemetry.traces import Traces

MESSAGE_BYTES: Final = 6 * 1024 * 1024
"""The longest message either way: 4 MiB of payload, and what goes round it."""

HEALTH_OF: Final[str] = tasks_pb2.DESCRIPTOR.services_by_name["TaskService"].full_name
"""The service whose health says whether a store wants calls."""
# Stores take turns. One that says that it is not serving, because it drains, gets no more calls.
_SERVICE_CONFIG: Final = json.dumps(
    {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": HEALTH_OF}}
)
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # The server permits a ping every 20 s; more often it would close the connection.
    ("grpc.keepalive_time_ms", 30_000),
    # Also the time after which bytes that nobody acknowledges end the connection.
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A store that is lost makes the name be looked up again, but by default not within 30 s of the last time.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    ("grpc.service_config", _SERVICE_CONFIG),
)


def open_channel(
    address: str,
    tls: Tls | None = None,
    *,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    traces: "Traces | None" = None,
) -> grpc.aio.Channel:
    """A channel for the running event loop. `address` is `host:port`, or `dns:///name:port` for many stores; without `tls`
    it is not encrypted. Calls pass through the interceptors."""
    passed = interceptors if traces is None else [*interceptors, Traced(traces, address)]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS, interceptors=passed)
    options = (*_OPTIONS, *tls.options())
    return RenewedChannel(
        tls,
        lambda credentials: grpc.aio.secure_channel(address, credentials, options=options, interceptors=passed),
    )


def open_blocking_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """A channel for a thread, on a connection of its own, so that nobody's large message goes ahead of its calls."""
    options = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    named = (*options, *tls.options())
    return RenewedBlockingChannel(tls, lambda credentials: grpc.secure_channel(address, credentials, options=named))
