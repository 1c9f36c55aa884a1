"""Certificate authorities and what they issue, for tests. trustme has no URIs in its certificates."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Issued:
    """A certificate with its key. chain_pem: with its intermediates."""

    def __init__(self, chain: list[x509.Certificate], key) -> None:
        self.certificate, self.key = chain[0], key
        self.chain_pem = b"".join(one.public_bytes(Encoding.PEM) for one in chain)
        self.key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Authority:
    """A CA, or with `parent` an intermediate one."""

    def __init__(self, name: str = "ca", parent: Authority | None = None) -> None:
        self.name, self.parent, self.key = name, parent, ec.generate_private_key(ec.SECP256R1())
        issuer = parent or self
        builder = _builder(name, issuer, self.key.public_key(), -DAY, 3650 * DAY)
        own = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        builder = builder.add_extension(own, critical=False)
        self.certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            issuer.key, hashes.SHA256()
        )
        self.pem = self.certificate.public_bytes(Encoding.PEM)

    @classmethod
    def read(cls, path: Path) -> Authority:
        """Of `path`.crt and `path`.key, as a local cluster has them."""
        found = cls.__new__(cls)
        found.parent, found.key = None, load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
        found.pem = path.with_suffix(".crt").read_bytes()
        found.certificate = x509.load_pem_x509_certificate(found.pem)
        found.name = found.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        return found

    def issue(
        self, *names: str, begins: timedelta = -DAY, ends: timedelta = 90 * DAY, key=None, ca: bool = False
    ) -> Issued:
        """For DNS names and URIs, valid from `begins` to `ends` from now."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        found = [x509.UniformResourceIdentifier(one) if "://" in one else x509.DNSName(one) for one in names]
        builder = _builder("leaf", self, key.public_key(), begins, ends)
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        if found:
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        above = [self.certificate] if self.parent is not None else []
        return Issued([builder.sign(self.key, hashes.SHA256()), *above], key)


def _builder(name: str, issuer: Authority, key, begins: timedelta, ends: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer.name)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        # Two CAs of one name, as when one is renewed, are told apart by their keys.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
    )


def write(directory: Path, issued: Issued | None, roots_pem: bytes | None) -> Path:
    """The files of a Secret. A file is replaced, never written over: what reads it meanwhile gets one or the other."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"ca.crt": roots_pem, **({"tls.crt": issued.chain_pem, "tls.key": issued.key_pem} if issued else {})}
    for name, data in content.items():
        if data is not None:
            (directory / f".{name}").write_bytes(data)
            os.replace(directory / f".{name}", directory / name)
    return directory


class Mount:
    """A Secret as the kubelet mounts it: the files are links through `..data`, which is swapped."""

    def __init__(self, directory: Path, issued: Issued, roots_pem: bytes) -> None:
        self.path, self._count = directory, 0
        self.swap(issued, roots_pem)
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (directory / name).symlink_to(f"..data/{name}")

    def swap(self, issued: Issued, roots_pem: bytes) -> None:
        self._count += 1
        write(self.path / f"..2026_{self._count}", issued, roots_pem)
        (self.path / "..data_tmp").symlink_to(f"..2026_{self._count}")
        os.replace(self.path / "..data_tmp", self.path / "..data")
