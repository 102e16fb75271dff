"""A store that asks its callers who they are, and certificates for all of them."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from store_service.client.channel import open_channel
from store_service.client.tls import Tls
from store_service.dev_certs import DOMAIN, Authority, make_authority
from store_service.rpc.policy import Permission
from store_service.server import Store
from tests.conftest import Stubs, started, store_on, stubs_on

EVERYTHING = {str(permission): ["*"] for permission in Permission}
POLICY = f"""
version: 1
callers:
  - {{identity: {DOMAIN}/bridge, role: bridge, tenants: ["*"]}}
  - {{identity: {DOMAIN}/bridge-of-acme, role: bridge, tenants: [acme]}}
  - {{identity: {DOMAIN}/reports, role: worker, worker: reports, tenants: [acme, globex], workflows: [report]}}
  - {{identity: {DOMAIN}/mails, role: worker, worker: mails, tenants: ["*"]}}
  - {{identity: {DOMAIN}/operator, role: operator, tenants: ["*"], permissions: {EVERYTHING}}}
  - {{identity: {DOMAIN}/auditor, role: auditor, tenants: [acme], permissions: {EVERYTHING}}}
  - {{identity: {DOMAIN}/helper, role: operator, tenants: ["*"]}}
  - {{identity: {DOMAIN}/counsel, role: operator, tenants: ["*"], permissions: {{place_hold: [acme]}}}}
  - {{identity: {DOMAIN}/narrow, role: bridge, tenants: ["*"], most_calls: 1}}
"""


@dataclass(frozen=True)
class Guarded:
    """The store, and the folder of its certificates and its policy."""

    address: str
    folder: Path
    authority: Authority

    def tls(self, name: str, *, certificate: Path | None = None, key: Path | None = None) -> Tls:
        """What a caller of this name connects with."""
        if not (self.folder / f"{name}.crt").exists():
            self.authority.issue(self.folder, name, [x509.UniformResourceIdentifier(f"{DOMAIN}/{name}")])
        return Tls(
            ca=self.folder / "ca.crt",
            certificate=certificate or self.folder / f"{name}.crt",
            key=key or self.folder / f"{name}.key",
        )

    @contextlib.asynccontextmanager
    async def caller(self, name: str) -> AsyncIterator[Stubs]:
        """The API, as the caller of this name sees it."""
        async with open_channel(self.address, self.tls(name)) as channel:
            yield stubs_on(channel, address=self.address, admin_port=0)


@pytest.fixture
async def guarded(dsn: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    """A store with certificates."""
    authority = make_authority(tmp_path)
    authority.issue(tmp_path, "store", [x509.DNSName("localhost")])
    (tmp_path / "policy.yaml").write_text(POLICY)
    async with guarding(dsn, tmp_path, tls_client_ca=str(tmp_path / "ca.crt")) as store:
        yield Guarded(f"localhost:{store.port}", tmp_path, authority)


def guarding(dsn: str, folder: Path, **settings: str) -> AbstractAsyncContextManager[Store]:
    """A store with TLS and this folder's policy."""
    files = {"tls_certificate": "store.crt", "tls_key": "store.key", "policy": "policy.yaml"}
    paths = {name: str(folder / file) for name, file in files.items()}
    return started(store_on(dsn, host="localhost", **paths, **settings))
