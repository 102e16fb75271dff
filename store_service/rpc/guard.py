"""Who calls, and what it may touch: asked before anything of a call is read."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any, Final, Protocol

import grpc
import structlog
from cryptography import x509
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from store_service.model.refusals import Reason, Refusal
from store_service.operations.audit import Audit
from store_service.rpc.audited import audited, tenant_of
from store_service.rpc.handlers import Interceptor, Stream, Unary, wrap
from store_service.rpc.policy import Caller, Permission, Role
from store_service.rpc.rules import CHANGES, PERMISSIONS, RULES

Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[Caller, Any], None]


class Authentication(Protocol):
    """How callers show who they are."""

    async def identify(self, context: Context) -> Caller:
        """Raises Refusal UNAUTHENTICATED for whoever is not known."""


class CertificateAuthentication:
    """The caller is who its certificate names: one subject alternative name that the policy knows."""

    def __init__(self, policy: Callable[[], Mapping[str, Caller]]) -> None:
        self._policy = policy

    async def identify(self, context: Context) -> Caller:
        """The connection's certificate was checked when it was made."""
        shown = tuple(context.auth_context().get("x509_pem_cert", ()))
        policy = self._policy()
        known = [name for name in names_in(bytes(shown[0])) if name in policy] if len(shown) == 1 else []
        if len(known) != 1:
            raise Refusal(Reason.UNAUTHENTICATED)
        return policy[known[0]]


@lru_cache(maxsize=1_000)
def names_in(certificate: bytes) -> frozenset[str]:
    """The URIs and DNS names of a certificate. A name of another kind that reads like one of them is none, nor is a DNS name
    that reads like a URI."""
    try:
        alternatives = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except (ValueError, x509.ExtensionNotFound):
        return frozenset()
    uris = (one for one in alternatives.value.get_values_for_type(x509.UniformResourceIdentifier) if "://" in one)
    hosts = (one for one in alternatives.value.get_values_for_type(x509.DNSName) if "://" not in one)
    return frozenset((*uris, *hosts))


class Guard(Interceptor):
    """Admits calls: known callers, by their role, to their tenants, workflows and leases, and not too many at once."""

    def __init__(self, authentication: Authentication, is_policy_read: Callable[[], bool], audit: Audit) -> None:
        self._authentication = authentication
        self._is_policy_read = is_policy_read
        self._audit = audit
        self._under_way: Counter[str] = Counter()

    def around(self, handler: Any, service: str, method: str, details: grpc.HandlerCallDetails) -> Any:
        """See `Interceptor`."""
        roles = RULES[service][method]
        unary = partial(self._unary, method, roles, PERMISSIONS.get(method))
        return wrap(handler, unary=unary, stream=partial(self._stream, roles))

    def _unary(self, method: str, roles: frozenset[Role], permission: Permission | None, inner: Unary) -> Unary:
        async def call(request: Any, context: Context) -> Any:
            caller = await self._identify(roles, context)
            check(caller, request)
            if permission is not None:
                self._permit(caller, permission, request)
            with self._one_more(caller):
                if caller.role is Role.OPERATOR and method in CHANGES:
                    return await audited(self._audit, caller, method, inner)(request, context)
                return await inner(request, context)

        return call

    def _stream(self, roles: frozenset[Role], inner: Stream) -> Stream:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            caller = await self._identify(roles, context)
            if isinstance(request, AsyncIterator):
                request = Admitted(caller, request)
            else:
                check(caller, request)
            with self._one_more(caller):
                async for answer in inner(request, context):
                    yield answer

        return call

    async def _identify(self, roles: frozenset[Role], context: Context) -> Caller:
        caller = await self._authentication.identify(context)
        structlog.contextvars.bind_contextvars(caller=caller.identity, role=caller.role.value)
        if caller.role not in roles:
            raise Refusal(Reason.PERMISSION_DENIED)
        return caller

    def _permit(self, caller: Caller, permission: Permission, request: Any) -> None:
        """What a permission that was read before is worth is not known while the file cannot be read."""
        if not self._is_policy_read():
            raise Refusal(Reason.POLICY_UNAVAILABLE)
        _require(caller.has(permission, tenant_of(request)))

    @contextmanager
    def _one_more(self, caller: Caller) -> Iterator[None]:
        if self._under_way[caller.identity] >= caller.most_calls:
            raise Refusal(Reason.OVERLOADED)
        self._under_way[caller.identity] += 1
        try:
            yield
        finally:
            self._under_way[caller.identity] -= 1
            if not self._under_way[caller.identity]:
                del self._under_way[caller.identity]


def check(caller: Caller, request: Message) -> None:
    """Raises Refusal PERMISSION_DENIED for a request that reaches beyond what the caller may touch, or is in another's name.

    A claim that names no tenants is for all that the caller may serve.
    """
    if caller.tenants is not None or caller.workflows is not None or caller.worker is not None:
        for one in _checks(request.DESCRIPTOR):
            one(caller, request)
    elif "principal" in request.DESCRIPTOR.fields_by_name:
        _check_principal(caller, request)


class Admitted:
    """The messages of a caller that sends a stream of them. Each part of one is to be checked by whoever does what it asks for,
    so that one that is refused does not end the stream of all others."""

    def __init__(self, caller: Caller, requests: AsyncIterator[Any]) -> None:
        self._caller = caller
        self._requests = requests

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._requests)

    def check(self, part: Message) -> None:
        """Raises Refusal PERMISSION_DENIED for what the caller may not touch."""
        check(self._caller, part)


@cache
def _checks(descriptor: Descriptor) -> tuple[Check, ...]:
    """What is to be checked of a message of this type, however deep it stands."""
    checks: list[Check] = []
    for field in descriptor.fields:
        if (check := _CHECKS.get(field.name)) is not None:
            checks.append(check)
        elif field.message_type is not None and (inner := _checks(field.message_type)):
            checks.append(_check_nested(field.name, repeated=field.is_repeated, inner=inner))
    return tuple(checks)


def _check_nested(name: str, *, repeated: bool, inner: tuple[Check, ...]) -> Check:
    def check_each(caller: Caller, request: Any) -> None:
        for one in getattr(request, name) if repeated else (getattr(request, name),):
            for check in inner:
                check(caller, one)

    return check_each


def _check_tenant(caller: Caller, request: Any) -> None:
    _require(caller.tenants is None or request.tenant_id in caller.tenants)


def _check_tenants(caller: Caller, request: Any) -> None:
    if caller.tenants is None:
        return
    _require(caller.tenants.issuperset(request.tenant_ids))
    if not request.tenant_ids:
        request.tenant_ids.extend(sorted(caller.tenants))


def _check_worker(caller: Caller, request: Any) -> None:
    name = caller.worker
    _require(name is None or request.worker_id == name or request.worker_id.startswith(f"{name}-"))


def _check_workflows(caller: Caller, request: Any) -> None:
    _require(caller.workflows is None or caller.workflows.issuperset(each.workflow for each in request.workflows))


def _check_principal(caller: Caller, request: Any) -> None:
    """Whoever does it does it in his own name, which is written here."""
    _require(request.principal in ("", caller.identity))
    request.principal = caller.identity


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise Refusal(Reason.PERMISSION_DENIED)


_CHECKS: Final[Mapping[str, Check]] = {
    "tenant_id": _check_tenant,
    "tenant_ids": _check_tenants,
    "worker_id": _check_worker,
    "workflows": _check_workflows,
    "principal": _check_principal,
}
