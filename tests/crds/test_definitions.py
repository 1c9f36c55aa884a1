"""The CRDs keep to what an API server demands, teach in kubectl explain, and show in kubectl get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from delayoperator.crds.cluster import DelayCluster
from delayoperator.crds.definitions import CLUSTER, KINDS, SHARD, CrdKind

from tests.crds import apiserver

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def schema_of(kind: CrdKind) -> Json:
    schema: Json = kind.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def fields(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema that a value can be held against, the root excepted."""
    for name, part in schema.get("properties", {}).items():
        yield f"{path}.{name}", part
        yield from fields(part, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield path + mark, schema[key]
            yield from fields(schema[key], path + mark)


def test_the_checked_in_files_are_what_the_models_say() -> None:
    run = subprocess.run([sys.executable, "scripts/crds.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_stale_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "crds").mkdir()
    (tmp_path / "scripts/crds.py").write_text((ROOT / "scripts/crds.py").read_text())
    for kind in KINDS:
        (tmp_path / "crds" / kind.file).write_text(kind.text())
    (tmp_path / "crds" / SHARD.file).write_text(SHARD.text().replace("Epoch", "Era"))
    (tmp_path / "crds" / "other.yaml").write_text("kind: Other\n")
    command = [sys.executable, "scripts/crds.py"]
    run = subprocess.run([*command, "--check"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert [line.split()[0] for line in run.stderr.splitlines()] == [f"crds/{SHARD.file}", "crds/other.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([*command, "--check"], cwd=tmp_path).returncode == 0


@every_kind
def test_the_text_is_the_manifest(kind: CrdKind) -> None:
    assert yaml.safe_load(kind.text()) == kind.manifest()


@every_kind
def test_every_schema_is_structural(kind: CrdKind) -> None:
    schema = schema_of(kind)
    assert schema["type"] == "object"
    for path, part in fields(schema):
        open_ended = part.get("x-kubernetes-int-or-string") or part.get("x-kubernetes-preserve-unknown-fields")
        assert part.get("type") or open_ended, path
        assert not part.keys() & {"$ref", "title", "definitions", "const", "oneOf", "allOf", "nullable"}, path
        assert not (part.get("properties") and part.get("additionalProperties")), path
        assert ("anyOf" in part) == bool(part.get("x-kubernetes-int-or-string")), path
        if part.get("type") == "array":
            assert part["maxItems"] <= 1_000, path  # CEL's cost is estimated from it
            assert part["x-kubernetes-list-type"] in ("map", "set", "atomic"), path
        for key in part.get("x-kubernetes-list-map-keys", ()):
            item = part["items"]
            assert key in item.get("required", ()) or "default" in item["properties"][key], path


@every_kind
def test_no_schema_has_an_empty_map_that_the_api_server_would_leave_out(kind: CrdKind) -> None:
    for path, part in fields(schema_of(kind)):
        assert part.get("properties", "absent"), path
        assert part.get("required", "absent"), path


@every_kind
def test_every_field_is_explained(kind: CrdKind) -> None:
    schema = schema_of(kind)
    assert len(schema["description"]) > 60
    for path, part in fields(schema):
        if path != ".metadata" and not path.endswith(("[]", "{}")):
            said = part.get("description", "")
            assert said.endswith((".", "TEAM`.")), f"{path}: {said}"
            assert len(said) >= 10, path


@every_kind
def test_every_rule_has_words_and_a_field_that_there_is(kind: CrdKind) -> None:
    for path, part in (("", schema_of(kind)), *fields(schema_of(kind))):
        for rule in part.get("x-kubernetes-validations", ()):
            assert len(rule["message"]) <= 300, path
            assert "\n" not in rule["message"], path
            if "fieldPath" in rule:
                assert rule["fieldPath"].removeprefix(".") in part["properties"], path


@every_kind
def test_the_columns_name_fields_that_there_are(kind: CrdKind) -> None:
    version = kind.manifest()["spec"]["versions"][0]
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert len(set(names)) == len(names)
    wide = [column.get("priority", 0) for column in version["additionalPrinterColumns"]]
    assert wide == sorted(wide)  # kubectl prints in this order: what -o wide adds comes last
    for column in version["additionalPrinterColumns"]:
        at = schema_of(kind)
        if column["jsonPath"] == ".metadata.creationTimestamp":
            continue
        for step in column["jsonPath"].replace('[?(@.type=="Ready")]', "[0]").removeprefix(".").split("."):
            at = at["properties"][step.removesuffix("[0]")]
            at = at["items"] if step.endswith("[0]") else at
        type_ = "date" if at.get("format") == "date-time" else at["type"]
        assert type_ in (column["type"], "array"), column


def test_names_and_subresources() -> None:
    assert [(kind.plural, kind.short) for kind in KINDS] == [
        ("delayclusters", "dlc"), ("delayshards", "dsh"), ("delayrebalances", "drb"),
        ("delayusers", "dlu"), ("delaytopics", "dlt"), ("delayschedules", "dls"), ("delaysinks", "dlk"),
    ]  # fmt: skip
    for kind in KINDS:
        assert "status" in kind.manifest()["spec"]["versions"][0]["subresources"]
        assert kind.manifest()["metadata"]["name"] == f"{kind.plural}.delaycluster.io"
    scale = CLUSTER.manifest()["spec"]["versions"][0]["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.nodes"
    for path in scale.values():
        at = schema_of(CLUSTER)
        for step in path.removeprefix(".").split("."):
            at = at["properties"][step]


def test_only_what_names_an_item_is_required_of_people() -> None:
    """So that an older object, and an apply of one topic and nothing else, are good."""
    required = {path: part["required"] for path, part in fields(schema_of(CLUSTER)) if part.get("required")}
    assert {path: names for path, names in required.items() if path.startswith(".spec")} == {
        ".spec.topics[]": ["name"],
        ".spec.rebalance.history": ["claimName"],
        ".spec.autoscaling": ["messagesPerSecond"],
        ".spec.podTemplate.topologySpreadConstraints[]": ["topologyKey"],
        ".spec.podTemplate.imagePullSecrets[]": ["name"],
        ".spec.podTemplate.env[]": ["name"],
        ".spec.podTemplate.volumes[]": ["name"],
        ".spec.podTemplate.volumeMounts[]": ["mountPath"],
        ".spec.podTemplate.sidecars[]": ["name"],
        ".spec.podTemplate.initContainers[]": ["name"],
        ".spec.podTemplate.hostAliases[]": ["ip"],
        ".spec.allowedNamespaces.selector.matchExpressions[]": ["key", "operator"],
        ".spec.networkPolicy.clients[].ipBlock": ["cidr"],
        ".spec.networkPolicy.monitoring[].ipBlock": ["cidr"],
        ".spec.networkPolicy.console[].ipBlock": ["cidr"],
        ".spec.console.oidc": ["issuer"],
        ".spec.console.oidc.clientSecret": ["name", "key"],
        ".spec.security": ["mode"],
        ".spec.security.certificates.certManager.issuerRef": ["name"],
        ".spec.security.certificates.secrets": ["server"],
        ".spec.security.tokens.oidc[]": ["issuer", "audience"],
    }


def test_the_first_release_s_objects_still_load() -> None:
    """objects/ has one of each kind as each release stored it. Never edit them: a later schema must take them."""
    found = sorted((Path(__file__).parent / "objects").glob("*/*.yaml"))
    assert len(found) >= 3
    by_name = {kind.name: kind for kind in KINDS}
    for path in found:
        body = yaml.safe_load(path.read_text())
        kind = by_name[body["kind"]]
        stored, schema, cel = apiserver.refusals(schema_of(kind), body, body)
        assert (schema, cel) == ([], []), path
        kind.model.model_validate(stored)
        kept = {name: stored[name] for name in ("spec", "status")}
        assert _within({name: body[name] for name in kept if name in body}, kept), path


def _within(small: Any, large: Any) -> bool:
    """Nothing of what was stored is dropped; defaults may have come."""
    if isinstance(small, dict) and isinstance(large, dict):
        return all(name in large and _within(small[name], large[name]) for name in small)
    if isinstance(small, list) and isinstance(large, list):
        return len(small) == len(large) and all(map(_within, small, large))
    return bool(small == large)


def test_the_model_of_the_root_is_documented_for_kubectl_explain() -> None:
    assert schema_of(CLUSTER)["description"].startswith("Messages that are delivered at a time")
    assert DelayCluster.model_validate({"spec": {}}).spec.nodes == 3
