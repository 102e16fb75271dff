"""How long certificates are good."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from store_service.telemetry.findings import Finding, doubtful, well, wrong

SOON: Final = timedelta(days=14)


def examine_certificates(setting: str, file: str) -> Finding:
    """Whether each certificate of a PEM file is good now, and two weeks from now. `setting` is where the file is named."""
    try:
        certificates = x509.load_pem_x509_certificates(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        return wrong(setting, f"{file} cannot be read: {error}", "name a file of certificates in PEM")
    now = datetime.now(UTC)
    first = min(certificates, key=lambda one: one.not_valid_after_utc)
    latest = max(one.not_valid_before_utc for one in certificates)
    ends = f"{first.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    if first.not_valid_after_utc <= now:
        return wrong(setting, f"{first.subject.rfc4514_string()} in {file} expired at {ends}", "renew it")
    if latest > now:
        return wrong(setting, f"{file} has a certificate that begins at {latest:%Y-%m-%dT%H:%M:%SZ}", "set this clock, or wait")
    if first.not_valid_after_utc - now < SOON:
        return doubtful(setting, f"{first.subject.rfc4514_string()} in {file} expires at {ends}", "renew it before")
    return well(setting, f"{file} is good until {ends}")
