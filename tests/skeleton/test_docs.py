"""The documents and the code agree, and nothing checked in is of one machine only."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from delayapi import errors
from delayclient import errors as client
from delayctl.main import main
from delayoperator import plan
from delayoperator.cluster.reasons import NEEDS_PAGE, Reason
from delayoperator.crds.definitions import OLDEST_KUBERNETES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
OPERATIONS = ROOT / "docs/operations.md"


def rows_of_errors() -> dict[str, tuple[str, str]]:
    """Reason -> (gRPC code, retry) of docs/errors.md."""
    text = (ROOT / "docs/errors.md").read_text()
    row = re.compile(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \| .*? \| (yes|no)[^|]* \| [^|]+ \|$", re.MULTILINE)
    return {reason: (code, retry) for reason, code, retry in row.findall(text)}


def checked_in() -> list[Path]:
    """The project's own files."""
    trees = ("node", "operator", "demo", "scripts", "tests", "benchmarks", "docs", "charts", "crds", "e2e", ".ci")
    files = [path for tree in trees for path in (ROOT / tree).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in files if path.suffix != ".pyc"]


def test_every_reason_of_the_node_is_explained_with_its_code() -> None:
    assert {reason: code for reason, (code, _) in rows_of_errors().items()} == {
        reason: code.name for reason, code in errors.CODES.items()
    }


def test_the_page_says_retry_exactly_where_the_sdk_retries() -> None:
    for reason, (code, retry) in rows_of_errors().items():
        assert client.make_error(code, reason, "").retryable == (retry == "yes"), reason


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Every `delayctl ...` that a page shows, in a block or between backticks."""
    text = page.read_text()
    for block in re.findall(r"^```(?:sh|text|)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in re.split(r"\n|\s\|\|?\s", block):
            if found := re.match(r"\s*(?:\$ )?(?:\S*/)?(delayctl .*)", line):
                yield found[1].partition("  #")[0]
    for line in re.findall(r"`(delayctl [^`]+)`", prose(page)):
        yield line


def unknown_words(line: str) -> list[str]:
    """The subcommands and options of a command line that `delayctl` does not have."""
    words = shlex.split(line.replace("[", "").replace("]", ""))[1:]
    command: click.Command = main
    context = click.Context(main)
    wrong = []
    known = {option for it in main.params for option in it.opts}
    for word in words:
        if word.startswith("-"):
            wrong += [] if word.partition("=")[0] in known or word == "--help" else [word]
        elif isinstance(command, click.Group) and not skips(words, word, command):
            inner = command.get_command(context, word)
            if inner is None:
                if command.name != "shards":  # which takes a topic too
                    wrong.append(word)
                break
            command = inner
            known |= {option for it in command.params for option in it.opts}
            if isinstance(command, click.Group):
                known |= {option for name in command.list_commands(context) for option in options_of(command, name)}
    return wrong


def skips(words: list[str], word: str, command: click.Command) -> bool:
    """It is the value of an option before it."""
    before = words[words.index(word) - 1] if words.index(word) else ""
    return any(before in it.opts and not getattr(it, "is_flag", False) for it in command.params)


def options_of(group: click.Group, name: str) -> list[str]:
    command = group.get_command(click.Context(group), name)
    return [] if command is None else [option for it in command.params for option in it.opts]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    """Tables and pictures have no narrower form."""
    lines = prose(page).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose(page)):
        to = page.parent / target if target else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_delayctl_command_in_the_pages_exists(page: Path) -> None:
    assert {line: wrong for line in commands(page) if (wrong := unknown_words(line))} == {}


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    for line in (
        "delayctl polish",
        "delayctl produce t --dellay 3s",
        "delayctl --kub a shards",
        "delayctl nodes drayn",
    ):
        assert unknown_words(line), line
    for line in ("delayctl shards orders", "delayctl --kube a/b nodes drain n1 --wait", "delayctl produce t --level 3"):
        assert not unknown_words(line), line


def test_every_reason_that_asks_for_somebody_has_a_section() -> None:
    sections = anchors(OPERATIONS)
    assert {reason for reason in NEEDS_PAGE if reason.lower() not in sections} == set()


def test_every_reason_of_a_cluster_is_named() -> None:
    page = OPERATIONS.read_text()
    assert {
        reason for reason in Reason if f"`{reason}`" not in page and reason.lower() not in anchors(OPERATIONS)
    } == set()


def test_every_reason_of_a_shard_has_a_section() -> None:
    code = "\n".join(path.read_text() for path in Path(plan.__file__).parent.glob("*.py"))
    reasons = re.findall(r'(?:Refuse|Held|Risk|ConditionType\.SURPLUS,)\(?\s*"([A-Za-z]+)"', code)
    assert len(reasons) > 10
    assert {reason for reason in reasons if reason.lower() not in anchors(OPERATIONS)} == set()


def test_every_alert_leads_to_a_section() -> None:
    alerts = (ROOT / "charts/delaycluster-operator/files/alerts.yaml").read_text()
    links = re.findall(r"runbook_url: (docs/\S+?\.md)(?:#(\S+))?$", alerts, re.MULTILINE)
    assert links
    for page, anchor in links:
        assert not anchor or anchor in anchors(ROOT / page), f"{page}#{anchor}"


def test_the_oldest_kubernetes_is_the_same_everywhere() -> None:
    chart = (ROOT / "charts/delaycluster-operator/Chart.yaml").read_text()
    assert f'kubeVersion: ">={OLDEST_KUBERNETES}.0-0"' in chart
    said = re.compile(r"\b1\.(?:2[5-9]|3\d) or newer")
    pages = [*PAGES, ROOT / "charts/delaycluster-operator/README.md", *(ROOT / "operator").rglob("*.py")]
    found = {named(page): set(said.findall(page.read_text())) for page in pages}
    assert {page: versions for page, versions in found.items() if versions} == {
        "docs/upgrade.md": {f"{OLDEST_KUBERNETES} or newer"},
        "charts/delaycluster-operator/README.md": {f"{OLDEST_KUBERNETES} or newer"},
    }


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_in_the_pages_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^(?:\$ )?make ([a-z0-9]+)", page.read_text(), re.MULTILINE)) <= targets
    assert set(re.findall(r"`make ([a-z0-9]+)", page.read_text())) <= targets


def test_no_file_names_a_directory_of_one_machine_or_a_package_registry() -> None:
    own = re.compile(rb"/(?:wor[k]|roo[t]|home/[a-z]+)/|index[-]url|extra[-]index|(?:py[p]i|pythonhoste[d])\.org")
    found = [path.relative_to(ROOT) for path in checked_in() if own.search(path.read_bytes())]
    assert found == []
