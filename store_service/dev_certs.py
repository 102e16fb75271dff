"""A certificate authority for trials and tests: `tenure-store dev-certs FOLDER`. Not for production: its key lies beside it."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DOMAIN: Final = "spiffe://tenure.test"
CALLERS: Final = ("bridge", "worker", "operator", "reviewer", "auditor")
_POLICY: Final = """\
# Who may call the store. An identity is a subject alternative name of the caller's certificate.
version: 1
callers:
  - {{identity: {domain}/bridge, role: bridge, tenants: ["*"]}}
  - {{identity: {domain}/worker, role: worker, worker: worker, tenants: ["*"]}}
  - identity: {domain}/operator
    role: operator
    tenants: ["*"]
    permissions: &all
      place_hold: ["*"]
      release_hold: ["*"]
      confirm_export: ["*"]
      prepare_purge: ["*"]
      list_purges: ["*"]
      claim_purge: ["*"]
      approve_purge: ["*"]
      reject_purge: ["*"]
      execute_purge: ["*"]
      get_purge_evidence: ["*"]
  - {{identity: {domain}/reviewer, role: operator, tenants: ["*"], permissions: *all}}
  - {{identity: {domain}/auditor, role: auditor, tenants: ["*"]}}
"""


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(self, folder: Path, name: str, alternatives: Sequence[x509.GeneralName], *, days: int = 30) -> None:
        """Writes `NAME.crt` and `NAME.key`. A negative number of days makes one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.SubjectAlternativeName(alternatives), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False),
        ]
        certificate = _certificate(
            name,
            key.public_key(),
            issuer=self.certificate.subject,
            signing_key=self.key,
            extensions=extensions,
            days=days,
        )
        _write(folder, name, certificate, key)


def make_authority(folder: Path) -> Authority:
    """Writes `ca.crt` and `ca.key`."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    certificate = _certificate(
        "Tenure trial authority", key.public_key(), issuer=None, signing_key=key, extensions=extensions, days=30
    )
    _write(folder, "ca", certificate, key)
    return Authority(certificate, key)


def make_dev_certs(folder: Path, *, hosts: Sequence[str] = ()) -> None:
    """Writes an authority, the store's certificate for loopback and `hosts`, one for each kind of caller, and the policy."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = make_authority(folder)
    names = [x509.DNSName(name) for name in ("localhost", "tenure-store", *hosts)]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    authority.issue(folder, "store", [*names, *addresses])
    for caller in CALLERS:
        authority.issue(folder, caller, [x509.UniformResourceIdentifier(f"{DOMAIN}/{caller}")])
    (folder / "policy.yaml").write_text(_POLICY.format(domain=DOMAIN))


def _certificate(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Name | None,
    signing_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    begin, end = sorted((now, now + datetime.timedelta(days=days)))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - datetime.timedelta(minutes=5))
        .not_valid_after(end)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signing_key, hashes.SHA256())


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    path = folder / f"{name}.key"
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
