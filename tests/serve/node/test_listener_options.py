"""Which listeners the options ask for, and what is said of options that don't fit."""

import pytest
from delaynode import config as configuration
from delaynode.listener_options import LISTENERS_VARIABLE, METRICS_VARIABLE, VARIABLES, ListenerConfig, Security

BASE = ["--node-id", "n0", "--data", "d", "--registry", "sqlite:r", "--edge", "grpcio"]
SERVER = ["--certificates", "/certs"]
PEERS = ["--peer-certificates", "/peers"]


def parse(*options: str) -> configuration.NodeConfig:
    return configuration.parse([*BASE, *options])


def test_without_options_there_is_the_one_listener_of_before() -> None:
    found = parse("--listen", "[::]:7070", "--advertise", "10.0.0.1:7070")
    assert found.listeners == (ListenerConfig("plain", "[::]:7070", "10.0.0.1:7070", False, "none"),)
    assert found.security == Security("", "", "", "off", 3_600)


def test_listeners_have_the_hosts_of_the_node_and_ports_of_their_own() -> None:
    found = parse(
        "--listen", "[::]:7070", "--advertise", "[fd00::7]:7070", *SERVER, *PEERS, "--client-ca", "/clients",
        "--listener", "tokens=7071,tls,token", "--listener", "everybody=7080,plain,none",
        "--listener", "mtls=7072,tls,mtls", "--peers", "permissive",
    )  # fmt: skip
    shown = [(one.name, one.listen, one.advertise, one.tls, one.authentication) for one in found.listeners]
    assert shown == [
        ("tokens", "[::]:7071", "[fd00::7]:7071", True, "token"),
        ("everybody", "[::]:7080", "[fd00::7]:7080", False, "none"),
        ("mtls", "[::]:7072", "[fd00::7]:7072", True, "mtls"),
        ("internal", "[::]:7073", "[fd00::7]:7073", True, "peer"),
    ]
    assert (found.listen, found.advertise) == ("[::]:7080", "[fd00::7]:7080")  # that for everybody
    assert found.security == Security("/certs", "/clients", "/peers", "permissive", 3_600)


def test_a_node_may_have_no_listener_for_everybody_once_nodes_talk_by_tls() -> None:
    found = parse("--listener", "tokens=7071,tls,token", *SERVER, *PEERS, "--peers", "preferred")
    assert (found.listen, [one.name for one in found.listeners]) == ("127.0.0.1:7071", ["tokens", "internal"])


def test_the_environment_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LISTENERS_VARIABLE, "plain=7070,plain,none; tls=7071,tls,none")
    monkeypatch.setenv(VARIABLES["certificates"], "/certs")
    monkeypatch.setenv(VARIABLES["peers"], "required")
    monkeypatch.setenv(VARIABLES["peer_certificates"], "/peers")
    assert [one.name for one in parse().listeners] == ["plain", "tls", "internal"]
    assert [one.name for one in parse("--listener", "a=1,plain,none", "--peers", "off").listeners] == ["a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listener", "tokens"], "'tokens' is not NAME=PORT,plain|tls,none|token|mtls, such as tokens=7071,tls,tok"),
        (["--listener", "a=1,tls"], "'a=1,tls' is not NAME=PORT"),
        (["--listener", "a=1,tls,none,none"], "is not NAME=PORT"),
        (["--listener", "a=1,ssl,none"], "is not NAME=PORT"),
        (["--listener", "a=1,tls,password"], "is not NAME=PORT"),
        (["--listener", "A=1,plain,none"], "'A' is no name for one: 1 to 15 of a-z"),
        (["--listener", "internal=1,plain,none"], "not internal"),
        (["--listener", "a" * 16 + "=1,plain,none"], "is no name for one"),
        (["--listener", "a=x,plain,none"], "'x' is no port, in 'x,plain,none'"),
        (["--listener", "a=0,plain,none"], "0 is no port, of a"),
        (["--listener", "a=65536,plain,none"], "65536 is no port, of a"),
        (["--listener", "a=1,plain,token"], "a has token, which needs tls"),
        (["--listener", "a=1,tls,none"], "a has tls, which needs --certificates"),
        (["--listener", "a=1,tls,mtls", *SERVER], "a has mtls, which needs --client-ca"),
        (["--listener", "a=1,plain,none", "--listener", "a=2,plain,none"], "two have one name: a, a"),
        (["--listener", "a=1,plain,none", "--listener", "b=1,plain,none"], "two have one port: 127.0.0.1:1, "),
        (["--listener", "a=1,tls,token", *SERVER], "with --peers off nodes pass calls on in plain text"),
        (["--listener", "a=1,tls,none", *SERVER, *PEERS, "--peers", "permissive"], "with --peers permissive nodes"),
        ([f"--listener=l{n}={n + 1},plain,none" for n in range(9)], "there are 9, with the internal one; allowed: 8"),
        (["--peers", "preferred"], "--peers: preferred needs --peer-certificates"),
        (["--peers", "on"], "invalid choice: 'on'"),
        (["--peers", "required", *PEERS, "--internal-port", "0"], "--internal-port: 0 is no port, of internal"),
        (["--peers", "required", *PEERS, "--internal-port", "7070"], "two have one port"),
        (["--connection-age-seconds", "0"], "--connection-age-seconds: 0; it is at least 1"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_end_in_a_sentence(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*options)
    assert said in capsys.readouterr().err


def test_a_bad_value_in_the_environment_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLES["peers"], "on")
    with pytest.raises(SystemExit):
        parse()
    assert "--peers: 'on'; it is one of off, permissive, preferred, required" in capsys.readouterr().err


def test_metrics_have_a_port_of_their_own_where_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse().metrics_listener is None
    http = ("--http", "[::]:7170", "--advertise-http", "10.0.0.1:7170")
    found = parse(*http, *SERVER, "--metrics-listener", "7171,tls,token").metrics_listener
    assert found == ListenerConfig("metrics", "[::]:7171", "10.0.0.1:7171", True, "token")
    monkeypatch.setenv(METRICS_VARIABLE, "7171,plain,none")
    assert parse().metrics_listener == ListenerConfig("metrics", "127.0.0.1:7171", "127.0.0.1:7171", False, "none")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["metrics=7171,tls,token"], "'metrics=7171' is no port"),
        (["7171"], "'7171' is not PORT,plain|tls,none|token|mtls, such as 7171,tls,token"),
        (["0,plain,none"], "0 is no port"),
        (["7171,plain,token"], "metrics has token, which needs tls"),
        (["7171,tls,token"], "metrics has tls, which needs --certificates"),
        (["7171,tls,mtls", *SERVER], "metrics has mtls, which needs --client-ca"),
        (["7170,plain,none"], "it has the port of --http"),
    ],
)
def test_a_metrics_listener_that_does_not_fit_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("--metrics-listener", *options)
    assert f"--metrics-listener: {said}" in capsys.readouterr().err


def test_no_listener_is_called_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--listener", "metrics=7071,plain,none")
    assert "'metrics' is no name for one" in capsys.readouterr().err
