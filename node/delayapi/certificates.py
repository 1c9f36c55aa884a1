"""Certificates on disk, as Kubernetes mounts a Secret, and as cert-manager names what is in it.

DIRECTORY/tls.crt   the leaf and its intermediates, PEM
          tls.key   the leaf's key, PEM without a password
          ca.crt    what is trusted; may be absent. Two CAs at a time while one takes over from the other
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store, VerificationError

LOOK_SECONDS: Final = 5.0  # a changed Secret takes the kubelet a minute or two anyway
CHAIN, KEY, ROOTS = "tls.crt", "tls.key", "ca.crt"
KUBELET_LINK: Final = "..data"  # of a mounted Secret: the kubelet swaps it, and all files change at once
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a TLS listener or client needs, checked: PEM that every TLS library reads.

    chain_pem: the leaf, then its intermediates; empty: of a store of roots. roots_pem: what is trusted; may be empty.
    not_after_ms: when the first of the chain ends, or the last of the roots where there is no chain; Unix time.
    names: the leaf's, as names_of() writes them.
    """

    chain_pem: bytes
    key_pem: bytes = field(repr=False)
    roots_pem: bytes
    not_after_ms: int
    names: tuple[str, ...]

    @property
    def roots(self) -> frozenset[bytes]:
        """What is trusted, each root by its PEM."""
        return frozenset(filter(None, self.roots_pem.split(_BEGIN)))

    @property
    def host(self) -> str:
        """A DNS name that the leaf is for, one in full before one that a wildcard covers; empty: there is none."""
        hosts = [name.removeprefix("dns:") for name in self.names if name.startswith("dns:")]
        covered = [f"any{host[1:]}" if host.startswith("*.") else host for host in hosts]
        return next((host for host in hosts if "*" not in host), covered[0] if covered else "")


class UnusableError(Exception):
    """Says which file is wrong, and why."""


Load: TypeAlias = Callable[[Path, datetime], Certificates]
"""Reads a store's path as of a moment. Raises UnusableError."""


class CertificateStore:
    """Keeps the newest good certificates of a directory. A bad one never replaces a good one.

    `current` is swapped as one value, and may be read in any thread; None: there was no good one yet. `problem` says
    what is wrong with what is on disk, also when it was good and has expired since; None: nothing is.
    """

    def __init__(self, path: str | Path, load: Load | None = None, now: Callable[[], float] = time.time) -> None:
        """Looks at once. load: load_certificates by default, or load_roots. now: Unix time, s."""
        self._path, self._load, self._now = Path(path), load or load_certificates, now
        self._seen: object = None
        self._told: list[Callable[[Certificates], object]] = []
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.current: Certificates | None = None
        self.problem: str | None = None
        self.look()

    def subscribe(self, told: Callable[[Certificates], object]) -> None:
        """Calls `told` with the current certificates, if there are any, and then with each newer one, in the thread of
        the store. It must return soon and raise nothing."""
        with self._looking:
            self._told.append(told)
            if self.current is not None:
                told(self.current)

    def start(self, seconds: float = LOOK_SECONDS) -> None:
        """Look at the directory so often, in a thread."""
        self._thread = threading.Thread(target=self._run, args=(seconds,), name="certificates", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            self.look()

    def look(self) -> None:
        """Read what is on disk, if it has changed or was not good."""
        with self._looking:
            seen, now = _stamp(self._path), datetime.fromtimestamp(self._now(), UTC)
            held = self.current
            expired = held is not None and now.timestamp() * 1000 >= held.not_after_ms
            if seen == self._seen and self.problem is None and not expired:
                return
            try:
                found = self._load(self._path, now)
            except UnusableError as error:
                self.problem = str(error)
                return
            self.problem = None
            if seen != self._seen or found != held:
                self._seen, self.current = seen, found
                for told in self._told:
                    told(found)


def _stamp(path: Path) -> object:
    """Differs once a file has changed."""
    try:
        files = sorted(os.scandir(path), key=lambda entry: entry.name) if path.is_dir() else [path]
        stats = [(os.fspath(file), os.stat(file)) for file in files]
    except OSError as error:
        return str(error)
    return [(name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats]


# ---------------------------------------------------------------- what a file has
def load_certificates(directory: Path, now: datetime) -> Certificates:
    """A leaf with its key, and the roots where there are any, which must verify the leaf. Raises UnusableError.

    The key is ECDSA on P-256: of all clients that come at once after a failover, each handshake with an RSA key costs
    ten times as much.
    """
    link = directory / KUBELET_LINK
    folder = Path(os.path.realpath(link)) if link.exists() else directory  # the files of one moment
    chain = _certificates(directory / CHAIN, folder / CHAIN)
    for certificate in chain:
        _check_time(directory / CHAIN, certificate, now)
    key = _key(directory / KEY, folder / KEY)
    if chain[0].public_key() != key.public_key():
        raise UnusableError(f"{directory / KEY} is not the key of the first certificate of {CHAIN}")
    roots = _certificates(directory / ROOTS, folder / ROOTS) if (folder / ROOTS).exists() else []
    if roots:
        _verify(directory / CHAIN, chain, roots, now)
    return Certificates(
        _pem(chain),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        _pem(roots),
        min(_ms(certificate.not_valid_after_utc) for certificate in chain),
        names_of(chain[0]),
    )


def load_roots(path: Path, now: datetime) -> Certificates:
    """What is trusted and nothing else: a file, or the `ca.crt` of a directory. Raises UnusableError."""
    file = path / ROOTS if path.is_dir() else path
    roots = _certificates(file, file)
    not_after = max(root.not_valid_after_utc for root in roots)
    if not_after <= now:
        raise UnusableError(f"{file} has no certificate that has not expired; the last did so at {not_after:%F %TZ}")
    return Certificates(b"", b"", _pem(roots), _ms(not_after), ())


def load_chain(context: ssl.SSLContext, found: Certificates) -> None:
    """Let the context show this chain. Raises OSError."""
    memory = os.memfd_create("certificates")  # load_cert_chain() takes files alone, and the key must not get to a disk
    try:
        os.write(memory, found.key_pem + found.chain_pem)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Its subject's alternative names: URIs as they are, then DNS names as `dns:NAME`. Others are left out."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return (*uris, *(f"dns:{name}" for name in names.get_values_for_type(x509.DNSName)))


def _read(shown: Path, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnusableError(f"{shown} can't be read: {error.strerror or error}") from error


def _certificates(shown: Path, path: Path) -> list[x509.Certificate]:
    content = _read(shown, path)
    try:
        found = x509.load_pem_x509_certificates(content)
        for certificate in found:
            certificate.extensions  # noqa: B018  parsed only when asked for
            certificate.public_key()
    except Exception as error:  # ValueError, and what cryptography does not know of a key or an extension
        raise UnusableError(f"{shown} is empty, cut off or not certificates in PEM") from error
    if len(found) != content.count(_BEGIN):
        raise UnusableError(f"{shown} has {content.count(_BEGIN)} certificates, of which {len(found)} are whole")
    return found


def _key(shown: Path, path: Path) -> ec.EllipticCurvePrivateKey:
    content = _read(shown, path)
    try:
        key = load_pem_private_key(content, None)
    except TypeError as error:
        raise UnusableError(f"{shown} is encrypted; it must be a key without a password") from error
    except Exception as error:  # ValueError, and algorithms that cryptography does not know
        raise UnusableError(f"{shown} is empty, cut off or not a private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        kind = key.curve.name if isinstance(key, ec.EllipticCurvePrivateKey) else type(key).__name__
        raise UnusableError(f"{shown} is {kind}; it must be ECDSA on P-256 (cert-manager: algorithm ECDSA, size 256)")
    return key


def _check_time(shown: Path, certificate: x509.Certificate, now: datetime) -> None:
    subject = certificate.subject.rfc4514_string() or ", ".join(names_of(certificate))
    if certificate.not_valid_after_utc <= now:
        raise UnusableError(f"{shown}: {subject} has expired at {certificate.not_valid_after_utc:%F %TZ}")
    if certificate.not_valid_before_utc > now:
        raise UnusableError(f"{shown}: {subject} is not valid before {certificate.not_valid_before_utc:%F %TZ}")


def _verify(shown: Path, chain: list[x509.Certificate], roots: list[x509.Certificate], now: datetime) -> None:
    """What TLS asks of a chain, and no more: a CA made by hand has few extensions."""
    leaf = ExtensionPolicy.permit_all()
    authority = leaf.require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)  # which say that it is a CA
    builder = PolicyBuilder().store(Store(roots)).time(now)
    verifier = builder.extension_policies(ca_policy=authority, ee_policy=leaf).build_client_verifier()
    try:
        verifier.verify(chain[0], chain[1:])
    except VerificationError as error:
        raise UnusableError(f"{shown}: {ROOTS} does not verify it with what follows it in the file: {error}") from error


def _pem(certificates: list[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
