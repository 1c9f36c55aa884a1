"""spec.security of a DelayCluster: whether its nodes ask who calls, with which certificates, and whose tokens count."""

from __future__ import annotations

from typing import Annotated

from delayregistry.security import MAX_NAME_CHARS, Verification
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds.base import LIST_SET, Model, Text, list_map, rule, rules
from delayoperator.crds.user import ISSUER
from delayoperator.resources.view import SecurityMode

SECRET_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
MAX_OIDC = 8

SecretName = Annotated[StrictStr, Field(pattern=SECRET_NAME, min_length=1, max_length=253)]


KEYS_WANTED = rule(
    "self.mode == 'Off' || has(self.certificates)",
    "Permissive and Required need certificates: of cert-manager, or in Secrets of yours",
    field=".certificates",
)
ONE_SOURCE = rule(
    "[has(self.certManager), has(self.secrets), has(self.ownCA)].filter(x, x).size() == 1",
    "certificates are of cert-manager, in Secrets, or of a CA of the cluster's own: one of certManager, secrets, ownCA",
)
OIDC_KEYS = rule(
    "self.issuer.startsWith('https://') || has(self.jwksURL)",
    "an issuer that is no https URL needs jwksURL: where its keys are",
    field=".issuer",
)


class IssuerRef(Model):
    """An issuer of cert-manager."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=253)] = Field(description="The issuer's name.")
    kind: Annotated[StrictStr, Field(min_length=1, max_length=253)] = Field(
        "Issuer", description="Issuer, of the cluster's namespace; ClusterIssuer; or that of an external issuer."
    )
    group: Annotated[StrictStr, Field(min_length=1, max_length=253)] = Field(
        "cert-manager.io", description="The group of the kind."
    )


class CertManager(Model):
    """Certificates that the operator asks cert-manager for. It makes a CA of this cluster's own, NAME-ca, for the nodes
    among themselves; the operator reads no Secret."""

    issuer_ref: IssuerRef | None = Field(
        None,
        description="Who issues the certificate that clients see. Absent: the cluster's own CA, which clients find in "
        "ca.crt of the Secret NAME-server-tls.",
    )


class CertificateSecrets(Model):
    """Secrets of the cluster's namespace, of type kubernetes.io/tls and with ca.crt. Keys are ECDSA on P-256."""

    server: SecretName = Field(
        description="The listeners' certificate. All nodes have the same; it is for a DNS name that clients ask for, "
        "such as NAME-client.NAMESPACE.svc."
    )
    peers: SecretName | None = Field(
        None,
        description="How nodes know each other: a certificate for servers and clients with the URI "
        "spiffe://delaycluster/ns/NAMESPACE/cluster/NAME/role/node and a DNS name. Its CA should issue nothing else: "
        "whom it gives that URI is a node. Absent: that of `server`.",
    )


class OwnCA(Model):
    """A CA of this cluster's own, whose key the operator keeps in the Secret NAME-ca."""


class ClusterCertificates(Model):
    """Where the nodes' certificates come from. They may be replaced at any time: nodes use new ones without a
    restart."""

    model_config = ConfigDict(json_schema_extra=rules(ONE_SOURCE))

    cert_manager: CertManager | None = Field(None, description="cert-manager makes them.")
    secrets: CertificateSecrets | None = Field(None, description="They are in Secrets that you make.")
    own_ca: OwnCA | None = Field(
        None,
        alias="ownCA",
        description="The operator makes them, by a CA of this cluster's own in the Secret NAME-ca. It needs a right on "
        "Secrets for it: the chart's rbac.secrets.",
    )
    client_ca: SecretName | None = Field(
        None,
        alias="clientCA",
        description="A Secret with ca.crt: who may have issued the certificates of clients. Absent: clients have "
        "tokens, and there is no listener mtls.",
    )


class OidcIssuer(Model):
    """A provider whose tokens count."""

    model_config = ConfigDict(json_schema_extra=rules(OIDC_KEYS))

    issuer: Annotated[StrictStr, Field(pattern=ISSUER, min_length=1, max_length=256)] = Field(
        description="As its tokens name it (iss), such as https://login.example.com."
    )
    audience: Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME_CHARS)] = Field(
        description="What its tokens must be for (aud)."
    )
    jwks_url: Annotated[StrictStr, Field(pattern="^https://[!-~]+$", max_length=1_024)] | None = Field(
        None,
        alias="jwksURL",
        description="Where its keys are. Absent: where its .well-known/openid-configuration says.",
    )
    ca: Annotated[StrictStr, Field(max_length=16_384)] | None = Field(
        None, description="PEM of whom to trust about its keys; absent: the public CAs."
    )
    principal_claim: Annotated[StrictStr, Field(min_length=1, max_length=128)] = Field(
        "sub", description="The claim that says who it is."
    )
    groups_claim: Annotated[StrictStr, Field(min_length=1, max_length=128)] | None = Field(
        None, description="The claim with its groups; absent: it has none."
    )


class TokensModel(Model):
    """Whose tokens count, at the listener `tokens`. Static ones are DelayUsers'."""

    service_accounts: Verification = Field(
        Verification.JWKS,
        description="How tokens of ServiceAccounts are verified; their audience is delaycluster.io/NAMESPACE/NAME. "
        "JWKS: by the API server's keys, without asking it. TokenReview: it is asked, and knows of pods that are gone; "
        "the ServiceAccount NAME-node then needs the ClusterRole system:auth-delegator.",
    )
    oidc: list[OidcIssuer] | None = Field(
        None, max_length=MAX_OIDC, description="Providers whose tokens count too.", json_schema_extra=list_map("issuer")
    )


class SecurityModel(Model):
    """Who may reach the nodes, and how."""

    model_config = ConfigDict(json_schema_extra=rules(KEYS_WANTED))

    mode: SecurityMode = Field(
        description="Off: no TLS, and everybody may do everything. Permissive: listeners with TLS beside the plain "
        "one, nodes talk to each other by TLS, and what no DelayUser allows is counted and logged, not refused. "
        "Required: TLS and DelayUsers alone; the port 7070 is gone. A change restarts the nodes, one after the other, "
        'and goes by Permissive; each may be taken back. In YAML Off is a boolean without quotes: write "Off".'
    )
    certificates: ClusterCertificates | None = Field(None, description="Where the nodes' certificates come from.")
    tokens: TokensModel = Field(TokensModel.model_validate({}), description="Whose tokens count.")
    super_users: list[Text] | None = Field(
        None,
        max_length=64,
        description="Principals that may do everything, such as system:serviceaccount:NAMESPACE:NAME; "
        "oidc-group:ISSUER#NAME: all of that group, by the tokens of one provider; group:NAME: by those of any.",
        json_schema_extra=LIST_SET,
    )
