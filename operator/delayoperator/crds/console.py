"""spec.console of a DelayCluster: the console in a browser, as pods beside the nodes."""

from __future__ import annotations

from typing import Annotated

from delayregistry.security import MAX_NAME_CHARS
from pydantic import Field, StrictStr

from delayoperator.crds.base import LIST_SET, Bool, Image, Model, rule
from delayoperator.crds.pod import Resources
from delayoperator.crds.security import SecretName
from delayoperator.crds.user import ISSUER

HOST_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$"
MAX_HOSTS = 16

ISSUER_KNOWN = rule(
    "!has(self.console) || !has(self.console.oidc) || (has(self.security) && has(self.security.tokens) && "
    "has(self.security.tokens.oidc) && self.security.tokens.oidc.exists(o, o.issuer == self.console.oidc.issuer))",
    "console.oidc.issuer must be one of security.tokens.oidc: it is the nodes that verify its tokens",
    field=".console",
)
SECURITY_WANTED = rule(
    "!has(self.console) || !has(self.security) || self.security.mode != 'Off'",
    "a console in the cluster needs security.mode Permissive or Required: it shows the nodes who its user is",
    field=".console",
)


class ClientSecret(Model):
    """A key of a Secret of the cluster's namespace."""

    name: SecretName = Field(description="The Secret's name.")
    key: Annotated[StrictStr, Field(pattern=r"^[-_a-zA-Z0-9]+([.][-_a-zA-Z0-9]+)*$", min_length=1, max_length=253)] = (
        Field(description="The key in it.")
    )


class ConsoleOidc(Model):
    """Sign-in at a provider, by the authorization code flow with PKCE."""

    issuer: Annotated[StrictStr, Field(pattern=ISSUER, min_length=1, max_length=256)] = Field(
        description="One of security.tokens.oidc, an https URL. The console's client there has its audience as its id."
    )
    client_secret: ClientSecret | None = Field(
        None, description="The client's secret. Absent: the client is a public one, and PKCE alone protects it."
    )
    scopes: list[Annotated[StrictStr, Field(pattern="^[!#-\\[\\]-~]+$", max_length=MAX_NAME_CHARS)]] | None = Field(
        None, max_length=16, description="More scopes than openid, such as groups.", json_schema_extra=LIST_SET
    )


class ConsoleModel(Model):
    """The console in a browser. It has no rights: what its user may, is what the nodes and the API server let the token
    do that the user has signed in with."""

    allow_changes: Bool = Field(
        False, description="Whether it offers actions beside pages. Without it, it refuses all of them."
    )
    hosts: list[Annotated[StrictStr, Field(pattern=HOST_NAME, max_length=253)]] | None = Field(
        None,
        max_length=MAX_HOSTS,
        description="Names by which browsers reach it, such as console.example.com, beside localhost and "
        "NAME-console.NAMESPACE.svc. A request for another name is refused.",
        json_schema_extra=LIST_SET,
    )
    certificate_secret: SecretName | None = Field(
        None,
        description="A Secret of type kubernetes.io/tls with the certificate that browsers see; it is TLS alone. "
        "Absent: with certificates.certManager it is made, NAME-console-tls, for all hosts; else it is needed.",
    )
    oidc: ConsoleOidc | None = Field(
        None, description="Sign-in at a provider. Absent: its users sign in with a token that they have."
    )
    image: Image | None = Field(None, description="Its image, which has delayctl. Absent: the operator's own.")
    resources: Resources | None = Field(
        None, description="Of its container. Absent: requests of 50m and 128Mi, a memory limit of 512Mi."
    )
