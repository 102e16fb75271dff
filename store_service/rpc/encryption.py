"""TLS for the store: certificates that are read anew when their files change, so that they rotate without a restart."""

from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from store_service.watched_file import WatchedFile


class TlsFiles(NamedTuple):
    """What the server shows, and whose callers it takes; no `client_ca` means that certificates are not asked for."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


def server_credentials(certificate: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """The credentials of a listener. With `client_ca` a caller without a certificate of it cannot connect.

    Raises OSError or ValueError for files that cannot be used.
    """
    paths = [certificate, key, *([client_ca] if client_ca is not None else [])]
    files = WatchedFile(*paths, read=read_tls_files)
    told = files.version

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        current = files.current()
        if files.version == told:
            return None
        told = files.version
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.current()),
        fetch,  # type: ignore[arg-type]  # None says that nothing changed
        require_client_authentication=client_ca is not None,
    )


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], root_certificates=files.client_ca)


def read_tls_files(certificate: Path, key: Path, client_ca: Path | None = None) -> TlsFiles:
    """Raises OSError or ValueError for files that cannot be used."""
    files = TlsFiles(certificate.read_bytes(), key.read_bytes(), client_ca.read_bytes() if client_ca is not None else None)
    shown = x509.load_pem_x509_certificate(files.certificate).public_key()
    if load_pem_private_key(files.key, password=None).public_key() != shown:  # half of a rotation
        raise ValueError(f"{key} is not the key of {certificate}")
    return files
