"""The keys of a local cluster with TLS: CAs of its own, what they have issued, and a token.

DATA/security/
  ca.crt, ca.key            the CA of listeners and clients
  peer-ca.crt, peer-ca.key  the CA of the cluster's own processes; its issue is of no use at other listeners
  server/     tls.crt, tls.key, ca.crt                  of the nodes' listeners
  clients/    ca.crt                                    who may come by `mtls`
  peers/      tls.crt, tls.key, ca.crt                  of the nodes among themselves
  operator/   tls.crt, tls.key, ca.crt                  of the operator, to the nodes
  admin/      tls.crt, tls.key, token                   of the person who may do everything

Kept over restarts. What has expired soon is issued anew at a start; CAs last ten years.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from delayapi.credentials import ClientCredentials, Tls
from delayoperator.certificate_authority import key_pem, new_key, sign
from delayoperator.control_loop.node_access import OperatorAccess
from delayregistry.security import AuthorizationMode, SecuritySpec, StaticToken

from delaylocal.ports import HOST

DIRECTORY: Final = "security"
SERVER_NAME: Final = "localhost"
CLUSTER_URI: Final = "spiffe://delaycluster/ns/local/cluster/local"
ADMIN: Final = "admin"
ADMIN_URI: Final = "spiffe://delaycluster/ns/local/user/admin"
_CA_DAYS, _LEAF_DAYS, _RENEW_DAYS = 3_650, 365, 30


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """Where they are. See the module."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def server(self) -> Path:
        return self.directory / "server"

    @property
    def clients(self) -> Path:
        return self.directory / "clients"

    @property
    def peers(self) -> Path:
        return self.directory / "peers"

    @property
    def operator(self) -> Path:
        return self.directory / "operator"

    @property
    def admin(self) -> Path:
        return self.directory / "admin"

    @property
    def token_file(self) -> Path:
        return self.admin / "token"

    def operator_access(self) -> OperatorAccess:
        """The operator's to the nodes. Raises BadCredentials."""
        at = self.operator
        return OperatorAccess(ClientCredentials(Tls(at / "ca.crt", at / "tls.crt", at / "tls.key", SERVER_NAME)))

    def document(self, found: SecuritySpec | None) -> SecuritySpec:
        """The security document with the admin's token and certificate, and all else as it was found."""
        found = found or SecuritySpec(AuthorizationMode.REQUIRED)
        token = StaticToken(ADMIN, hashlib.sha256(self.token_file.read_text().strip().encode()).hexdigest())
        others = tuple(one for one in found.tokens if one.name != ADMIN)
        admins = (f"token:{ADMIN}", ADMIN_URI)
        users = tuple(one for one in found.super_users if one not in admins)
        return replace(found, tokens=(token, *others), super_users=(*admins, *users))


def make_keys(directory: Path, now: datetime | None = None) -> OwnKeys:
    """Makes what is missing, and anew what expires within 30 days. Raises OSError, and ValueError for a CA that can't
    be read, since all that trust it would be cut off from another one."""
    keys, now = OwnKeys(directory), now or datetime.now(UTC)
    directory.mkdir(mode=0o700, exist_ok=True)
    ca = _Ca(directory / "ca", "delaycluster local CA", now)
    peer_ca = _Ca(directory / "peer-ca", "delaycluster local peer CA", now)
    node = x509.UniformResourceIdentifier(f"{CLUSTER_URI}/role/node")
    here = (x509.DNSName(SERVER_NAME), x509.IPAddress(ip_address(HOST)))
    ca.issue(keys.server, "node", (node, *here), now)
    ca.issue(keys.admin, ADMIN, (x509.UniformResourceIdentifier(ADMIN_URI),), now)
    _write(keys.clients / "ca.crt", ca.pem)
    peer_ca.issue(keys.peers, "node", (node, *here), now)
    peer_ca.issue(keys.operator, "operator", (x509.UniformResourceIdentifier(f"{CLUSTER_URI}/role/operator"),), now)
    if not keys.token_file.exists():
        _write(keys.token_file, f"{secrets.token_urlsafe(32)}\n".encode())
    return keys


def own_access(data: Path) -> OperatorAccess:
    """The operator's to the nodes of the local cluster in `data`, with TLS or without."""
    keys = OwnKeys(data / DIRECTORY)
    return keys.operator_access() if keys.operator.exists() else OperatorAccess()


class _Ca:
    """`path`.crt and `path`.key."""

    def __init__(self, path: Path, name: str, now: datetime) -> None:
        certificate, key = path.with_name(f"{path.name}.crt"), path.with_name(f"{path.name}.key")
        if certificate.exists() or key.exists():
            self._certificate, self._key = _read(certificate, key)
        else:
            self._key = new_key()
            self._certificate = sign(name, (), self._key, None, now, _CA_DAYS)
            _write(key, key_pem(self._key))
            _write(certificate, self.pem)

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, directory: Path, name: str, names: tuple[x509.GeneralName, ...], now: datetime) -> None:
        """What the directory has stays, if it is this CA's, of these names, and lasts."""
        _write(directory / "ca.crt", self.pem)
        try:
            found, _ = _read(directory / "tls.crt", directory / "tls.key")
            found.verify_directly_issued_by(self._certificate)
            same = tuple(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == names
            if same and found.not_valid_after_utc - now > timedelta(days=_RENEW_DAYS):
                return
        except Exception:
            pass
        key = new_key()
        made = sign(name, names, key, (self._certificate, self._key), now, _LEAF_DAYS)
        _write(directory / "tls.key", key_pem(key))
        _write(directory / "tls.crt", made.public_bytes(Encoding.PEM))


def _read(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises OSError, ValueError."""
    loaded = load_pem_private_key(key.read_bytes(), None)
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != found.public_key():
        raise ValueError(f"{key} is not the key of {certificate}")
    return found, loaded


def _write(path: Path, content: bytes) -> None:
    """For its owner only. Whoever reads it meanwhile has the old or the new one."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
