"""`delayctl config`, and where a command goes: its options, the environment, the current context."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from delayctl.main import main
from delayctl.targets.contexts import Context, ContextFile, load, save
from hypothesis import given
from hypothesis import strategies as st

from tests.client.support.authority import NAME, serving, write_ca, write_client
from tests.client.support.fakes import FakeCluster, FakeNode
from tests.security.authority import Authority


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith("DELAYCTL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings/delayctl/config.toml"


def delayctl(*arguments: str, **variables: str) -> Result:
    return CliRunner(env=variables).invoke(main, arguments, catch_exceptions=False)


def told(*arguments: str) -> str:
    """What a command that should work prints."""
    result = delayctl(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def listed() -> list[dict[str, Any]]:
    return [json.loads(line) for line in told("config", "get-contexts", "--json").splitlines()]


def test_contexts_are_made_changed_chosen_and_forgotten(config: Path, tmp_path: Path) -> None:
    assert listed() == []
    told("config", "set-context", "one", "--endpoint", "a:1", "--ca", "ca.crt", "--token-file", str(tmp_path / "t"))
    told("config", "set-context", "two", "--kube", "shop/orders", "--tls")
    ca, token = str(Path.cwd() / "ca.crt"), str(tmp_path / "t")
    one = {"context": "one", "current": True, "endpoint": "a:1", "ca": ca, "token-file": token}
    assert listed() == [one, {"context": "two", "current": False, "kube": "shop/orders", "tls": True}]
    told("config", "use-context", "two")
    told("config", "set-context", "one", "--token-file", "", "--server-name", "a.svc")
    told("config", "set-context", "two", "--endpoint", "b:2")
    assert listed() == [
        {"context": "one", "current": False, "endpoint": "a:1", "ca": ca, "server-name": "a.svc"},
        {"context": "two", "current": True, "endpoint": "b:2", "tls": True},
    ]
    assert "two" in told("config", "get-contexts")
    told("config", "delete-context", "two")
    assert [(one["context"], one["current"]) for one in listed()] == [("one", False)]


def test_config_file_is_its_owners_alone(config: Path) -> None:
    told("config", "set-context", "one", "--endpoint", "a:1")
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]
    config.chmod(0o622)
    refused = delayctl("config", "get-contexts")
    assert refused.exit_code == 2
    assert f"{config} can be written by others" in refused.stderr


TEXT = st.text(st.characters(exclude_categories=["C", "Z"], max_codepoint=0x3000), min_size=1)


@given(endpoint=TEXT, ca=TEXT, token=TEXT, tls=st.booleans())
def test_any_text_that_can_be_printed_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, endpoint: str, ca: str, token: str, tls: bool
) -> None:
    file = ContextFile().with_context("a.b", Context(endpoint, tls=tls, ca=ca, token_file=token))
    path = tmp_path_factory.mktemp("contexts") / "config.toml"
    save(path, file)
    assert load(path) == file
    assert tomllib.loads(path.read_text())["contexts"]["a.b"]["endpoint"] == endpoint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("current = ", "is not TOML"),
        ("\xff", "is not TOML"),
        ("curent = 'one'", "unknown curent; there are current and contexts"),
        ("contexts = 3", "contexts is a table"),
        ("[contexts]\none = 3", "context 'one' is not a table"),
        ("[contexts.one]\ntoken = 'secret'", "context 'one' has an unknown token; there are endpoint, kube"),
        ("[contexts.one]\nendpoint = 7070", "endpoint of context 'one' is not a text"),
        ("[contexts.one]\nendpoint = 'a:1'\ntls = 'yes'", "tls of context 'one' is not a bool"),
        ("[contexts.one]\ntls = true", "context 'one' names no cluster"),
        ("[contexts.one]\nendpoint = 'a:1'\nkube = 'b'", "or two: give one of endpoint and kube"),
        ("[contexts.'o e']\nendpoint = 'a:1'", "'o e' is no name of a context"),
        ("#" * (1 << 20) + "#", "has over 1 MiB"),
    ],
)
def test_config_file_that_cannot_be_meant_is_refused_with_its_name(config: Path, text: str, why: str) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(text, encoding="latin-1")
    config.chmod(0o600)
    refused = delayctl("config", "get-contexts")
    assert refused.exit_code == 2
    assert f"{config}" in refused.stderr
    assert why in refused.stderr


def test_context_that_is_not_there_is_refused_with_those_that_are(config: Path) -> None:
    told("config", "set-context", "one", "--endpoint", "a:1")
    for refused in (
        delayctl("config", "use-context", "two"),
        delayctl("config", "delete-context", "two"),
        delayctl("pending", "t", "--context", "two"),
        delayctl("pending", "t", DELAYCTL_CONTEXT="two"),
    ):
        assert refused.exit_code == 2
        assert "there is no context 'two'; there are: one" in refused.stderr


def test_two_clusters_are_refused() -> None:
    for arguments in (("--context", "one", "--endpoint", "a:1"), ("--context", "one", "--kube", "b")):
        refused = delayctl("pending", "t", *arguments)
        assert refused.exit_code == 2
        assert f"{arguments[2]} and --context name two clusters" in refused.stderr


# ----------------------------------------------------------------------------------------- real calls


async def in_thread(*arguments: str, **variables: str) -> Result:
    return await asyncio.to_thread(delayctl, *arguments, **variables)


def test_commands_reach_a_cluster_with_tls_and_token_by_context_options_and_environment(tmp_path: Path) -> None:
    async def body() -> None:
        authority, node = Authority(), FakeNode(FakeCluster())
        node.credentials, node.tokens = serving(authority), {"secret"}
        ca, token = str(write_ca(authority, tmp_path / "ca.crt")), tmp_path / "token"
        token.write_text("secret")
        async with node:
            place = ["--endpoint", node.endpoint, "--ca", ca, "--server-name", NAME, "--token-file", str(token)]
            environment = {f"DELAYCTL_{option[2:].replace('-', '_').upper()}": value for option, value in _pairs(place)}
            produce = ("produce", "t", "--body", "x", "--delay", "1ms")
            assert (await in_thread(*produce, *place)).exit_code == 0
            assert (await in_thread(*place, *produce)).exit_code == 0
            assert (await in_thread(*produce, **environment)).exit_code == 0
            assert (await in_thread("config", "set-context", "it", *place)).exit_code == 0
            assert (await in_thread(*produce)).exit_code == 0
            told("config", "set-context", "other", "--endpoint", "127.0.0.1:1")
            told("config", "use-context", "other")
            assert (await in_thread(*produce, "--context", "it")).exit_code == 0
            assert (await in_thread("--context", "it", *produce)).exit_code == 0
            assert (await in_thread(*produce, DELAYCTL_CONTEXT="it")).exit_code == 0
            assert len(node.cluster.shards[0].bodies()) == 7

            token.write_text("wrong")
            refused = await in_thread(*produce, "--context", "it")
            assert refused.exit_code == 1
            assert "the token is not valid" in refused.stderr

    asyncio.run(body())


def test_context_shows_its_token_to_its_own_cluster_only(tmp_path: Path) -> None:
    async def body() -> None:
        authority, node = Authority(), FakeNode(FakeCluster())
        node.credentials = serving(authority)
        (tmp_path / "token").write_text("secret")
        ca = str(write_ca(authority, tmp_path / "ca.crt"))
        told("config", "set-context", "it", "--endpoint", "a:1", "--ca", ca, "--token-file", str(tmp_path / "token"))
        async with node:
            place = ("--endpoint", node.endpoint, "--ca", ca, "--server-name", NAME)
            assert (await in_thread("produce", "t", "--body", "x", *place)).exit_code == 0
            assert set(node.came_with) == {""}

    asyncio.run(body())


def test_what_is_wrong_with_tls_is_one_line_and_says_that_the_cluster_was_not_reached(tmp_path: Path) -> None:
    async def body() -> None:
        authority, node = Authority(), FakeNode(FakeCluster())
        node.credentials = serving(authority)
        certificate, key = write_client(authority, tmp_path)
        ca = str(write_ca(Authority(), tmp_path / "ca.crt"))
        (tmp_path / "token").write_text("secret")
        async with node:
            for options, code, says in (
                ((), 3, "speaks TLS, and this client does not"),
                (("--ca", ca, "--server-name", NAME), 3, "is of a CA that this client does not trust"),
                (("--ca", str(tmp_path / "none")), 2, "cannot be read: No such file"),
                (("--ca", ca, "--client-cert", str(certificate)), 2, "a certificate needs its key"),
                (("--ca", ca, "--client-cert", str(key), "--client-key", str(key)), 2, "are not a certificate"),
                (("--token-file", str(tmp_path / "token")), 2, "without TLS a token can be read"),
            ):
                failed = await in_thread("pending", "t", "--endpoint", node.endpoint, *options)
                assert failed.exit_code == code, failed.stderr
                assert says in failed.stderr

    asyncio.run(body())


def _pairs(options: list[str]) -> list[tuple[str, str]]:
    return list(zip(options[::2], options[1::2], strict=True))
