"""TLS of both sides, made of PEM files; a file that does not do is named."""

import os
import ssl
from pathlib import Path

__all__ = ["client_tls", "server_tls"]


def client_tls(authority: str | os.PathLike[str]) -> ssl.SSLContext:
    """A context that believes the certificates in a file only. Raises OSError, ValueError, both with its name."""
    name = os.fspath(authority)
    Path(name).read_bytes()  # what cannot be read is said with its name
    try:
        return ssl.create_default_context(cafile=name)
    except ssl.SSLError as error:
        raise ValueError(f"tls_ca {name!r} holds no certificate in PEM: {_reason(error)}") from None


def server_tls(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> tuple[ssl.SSLContext, bytes]:
    """What `SandboxServer` takes as `tls`, of a chain's file and its key's. Raises OSError, ValueError."""
    text = Path(certificate).read_text("latin-1")
    Path(key).read_bytes()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"{os.fspath(certificate)!r} and {os.fspath(key)!r} are not a certificate (or a chain) and its private "
            f"key in PEM: {_reason(error)}"
        ) from None
    end = "-----END CERTIFICATE-----"
    first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
    return context, ssl.PEM_cert_to_DER_cert(first)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
