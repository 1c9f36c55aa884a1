"""What OpenShift's SecurityContextConstraint `restricted-v2` does to pods, on any Kubernetes from 1.36 on.

The API server serves security.openshift.io/v1, by which the chart knows OpenShift. Pods that name no ids get the user
and fsGroup of a namespace's range; no image knows them. Pods that name others are refused, as is all that the
constraint does not allow. Left out: SELinux labels, and a range for each namespace.
"""

from __future__ import annotations

import json

from e2e.harness.kubectl import Kubectl, Object, wait_until

USER = 1_000_650_000
SECONDS = 60.0  # until the API server follows new policies
GROUP, ADMISSION = "security.openshift.io", "admissionregistration.k8s.io/v1"
MUTATE, VALIDATE = "restricted-v2-ids", "restricted-v2"
VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
PODS: Object = {
    "namespaceSelector": {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]
    },
    "resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    ],
}  # fmt: skip
_CONTAINERS = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
_CONTEXT = "Object.spec.{0}{{name: it.name, securityContext: Object.spec.{0}.securityContext{{runAsUser: {1}}}}}"


def _names(context: str, *fields: str) -> str:
    return " || ".join(f"(has({context}) && has({context}.{field}))" for field in fields)


NAMES_IDS = (
    f"({_names('object.spec.securityContext', 'runAsUser', 'runAsGroup', 'fsGroup', 'supplementalGroups')} || "
    f"{_CONTAINERS}.exists(it, {_names('it.securityContext', 'runAsUser', 'runAsGroup')}))"
)


def _mutated(field: str) -> str:
    each = _CONTEXT.format(field, USER)
    return f"object.spec.{field}.map(it, {each})"


def _policy(kind: str, name: str, spec: Object, binding: Object) -> list[Object]:
    return [
        {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": ADMISSION, "kind": f"{kind}Binding", "metadata": {"name": name},
            "spec": {"policyName": name, **binding},
        },
    ]  # fmt: skip


def _mutations() -> list[Object]:
    containers, inits = (f"{field}: {_mutated(field)}" for field in ("containers", "initContainers"))
    pod = f"Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{{fsGroup: {USER}}}, {containers}"
    expression = f"has(object.spec.initContainers) ? {pod}, {inits}}}}} : {pod}}}}}"
    return _policy(
        "MutatingAdmissionPolicy", MUTATE,
        {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": PODS,
            "matchConditions": [{"name": "names-no-ids", "expression": f"!{NAMES_IDS}"}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        }, {},
    )  # fmt: skip


def _validations() -> list[Object]:
    kinds = " || ".join(f"has(it.{kind})" for kind in VOLUMES)
    hosts = " && ".join(f"!(has(object.spec.{it}) && object.spec.{it})" for it in ("hostNetwork", "hostPID", "hostIPC"))
    rules = {
        f"fsGroup is {USER}, and no other id of the pod's own": (
            f"has(object.spec.securityContext) && object.spec.securityContext.?fsGroup.orValue(0) == {USER} && "
            f"!({_names('object.spec.securityContext', 'runAsUser', 'runAsGroup', 'supplementalGroups')})"
        ),
        f"each container's user is {USER}, without a group": (
            f"{_CONTAINERS}.all(it, has(it.securityContext) && it.securityContext.?runAsUser.orValue(0) == {USER} && "
            "!has(it.securityContext.runAsGroup))"
        ),
        "no container has privileges": (
            f"{_CONTAINERS}.all(it, !it.securityContext.?privileged.orValue(false) && "
            "!it.securityContext.?allowPrivilegeEscalation.orValue(true) && "
            "it.securityContext.?capabilities.?drop.orValue([]).exists(one, one == 'ALL') && "
            "it.securityContext.?capabilities.?add.orValue([]).all(one, one == 'NET_BIND_SERVICE'))"
        ),
        "nothing of the host's": hosts,
        f"volumes are {', '.join(VOLUMES)}": (
            f"!has(object.spec.volumes) || object.spec.volumes.all(it, {kinds})"
        ),
    }  # fmt: skip
    said = [{"expression": expression, "message": f"restricted-v2: {rule}"} for rule, expression in rules.items()]
    return _policy(
        "ValidatingAdmissionPolicy", VALIDATE,
        {"failurePolicy": "Fail", "matchConstraints": PODS, "validations": said}, {"validationActions": ["Deny"]},
    )  # fmt: skip


def _definition() -> Object:
    names = {"kind": "SecurityContextConstraints", "plural": "securitycontextconstraints"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP, "scope": "Cluster", "names": names,
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }  # fmt: skip


def become(kube: Kubectl) -> None:
    """From now on; what runs already goes on. The API server takes a while to follow a policy."""
    for found in (_definition(), *_mutations(), *_validations()):
        kube.apply(found)
    wait_until("pods are held to restricted-v2", lambda: _lacks(kube), SECONDS)


def _lacks(kube: Kubectl) -> list[str]:
    """What has not come into force, as a pod that has privileges shows: with ids, and refused."""
    context = {"privileged": True}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "looking", "namespace": "default"},
        "spec": {"containers": [{"name": "it", "image": "it", "securityContext": context}]},
    }  # fmt: skip
    said = kube.refused("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    return [] if "no container has privileges" in said and "fsGroup is" not in said else [said]
