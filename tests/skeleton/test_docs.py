"""The documents and the code agree, and nothing checked in is of one machine only."""

import re
import subprocess
from pathlib import Path

import pytest
from delayclient import errors as client
from delaynode.serve import rpc

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows_of_errors() -> dict[str, tuple[str, str]]:
    """Reason -> (gRPC code, retry) of docs/errors.md."""
    text = (ROOT / "docs/errors.md").read_text()
    row = re.compile(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \| .*? \| (yes|no)[^|]* \| [^|]+ \|$", re.MULTILINE)
    return {reason: (code, retry) for reason, code, retry in row.findall(text)}


def checked_in() -> list[Path]:
    """The project's own files."""
    trees = ("node", "operator", "demo", "scripts", "tests", "benchmarks", "docs", ".ci")
    files = [path for tree in trees for path in (ROOT / tree).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in files if path.suffix != ".pyc"]


def test_every_reason_of_the_node_is_explained_with_its_code() -> None:
    assert {reason: code for reason, (code, _) in rows_of_errors().items()} == {
        reason: code.name for reason, code in rpc.CODES.items()
    }


def test_the_page_says_retry_exactly_where_the_sdk_retries() -> None:
    for reason, (code, retry) in rows_of_errors().items():
        assert client.make_error(code, reason, "").retryable == (retry == "yes"), reason


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_in_the_pages_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^(?:\$ )?make ([a-z0-9]+)", page.read_text(), re.MULTILINE)) <= targets
    assert set(re.findall(r"`make ([a-z0-9]+)", page.read_text())) <= targets


def test_no_file_names_a_directory_of_one_machine_or_a_package_registry() -> None:
    own = re.compile(rb"/(?:wor[k]|roo[t]|home/[a-z]+)/|index[-]url|extra[-]index|(?:py[p]i|pythonhoste[d])\.org")
    found = [path.relative_to(ROOT) for path in checked_in() if own.search(path.read_bytes())]
    assert found == []


def test_e2e_says_when_it_comes_and_does_not_fail() -> None:
    ended = subprocess.run(["make", "e2e"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "operator" in ended.stdout
