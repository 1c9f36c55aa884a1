"""Issuers of tokens for tests: keys, key sets and signed tokens."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from delayregistry.security import AuthorizationMode, IssuerKind, SecuritySpec, TokenIssuer
from jwt.algorithms import get_default_algorithms

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = "delaycluster.io/messages/shared"
ACCOUNT = "system:serviceaccount:shop:worker"
OIDC = "https://login.example.com"


@lru_cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """The key of that number for that algorithm; the same one each time."""
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return ec.generate_private_key(curves[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 1_024 if algorithm == "weak" else 2_048)


def public_pem(algorithm: str, number: int = 0) -> bytes:
    return private_key(algorithm, number).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key_id: str, algorithm: str = "ES256", number: int = 0, **more: Any) -> dict[str, Any]:
    name = "RS256" if algorithm == "weak" else algorithm
    public = get_default_algorithms()[name].to_jwk(private_key(algorithm, number).public_key(), as_dict=True)
    return {**public, "kid": key_id, "use": "sig", **more}


def key_set(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys) or [jwk("k1")]})


def token(algorithm: str = "ES256", key_id: str | None = "k1", number: int = 0, **claims: Any) -> str:
    """A ServiceAccount's, good for an hour, where `claims` say nothing else; None takes a claim away."""
    now = time.time()
    said = {"iss": ISSUER, "aud": [AUDIENCE], "sub": ACCOUNT, "exp": now + 3_600, "nbf": now - 5, **claims}
    headers = {} if key_id is None else {"kid": key_id}
    payload = {name: value for name, value in said.items() if value is not None}
    # PyJWT checks what it is to sign; a forger does not
    return jwt.api_jws.encode(json.dumps(payload).encode(), private_key(algorithm, number), algorithm, headers)


def accounts(keys: str | None = None, **more: Any) -> TokenIssuer:
    """The issuer of ServiceAccounts' tokens, its keys given."""
    return TokenIssuer(IssuerKind.SERVICE_ACCOUNTS, AUDIENCE, ISSUER, jwks=key_set() if keys is None else keys, **more)


def oidc(**more: Any) -> TokenIssuer:
    return TokenIssuer(IssuerKind.OIDC, **{"audience": AUDIENCE, "issuer": OIDC, "jwks": key_set(), **more})


def document(*issuers: TokenIssuer, **more: Any) -> SecuritySpec:
    return SecuritySpec(AuthorizationMode.REQUIRED, issuers=issuers, **more)
