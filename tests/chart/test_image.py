"""The Dockerfile, as far as it can be judged without building it."""

from __future__ import annotations

import re

import pytest

from tests.chart.places import CHART, ROOT, project, read

DOCKERFILE = (ROOT / "Dockerfile").read_text()
USER = 10_001


def stages() -> dict[str, tuple[str, str]]:
    """Name -> (what it is made from, its instructions)."""
    found = {}
    for part in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        base, name = re.fullmatch(r"(\S+) AS (\S+)", head).groups()  # type: ignore[union-attr]
        found[name] = base, re.sub(r"^#.*\n", "", body, flags=re.MULTILINE)
    return found


def lineage(name: str) -> str:
    """All instructions that the image of a stage is made by, those that only copy files from others left out."""
    base, body = stages()[name]
    return (lineage(base) if base in stages() else "") + body


@pytest.mark.parametrize("target", ["node", "operator", "rebalance"])
def test_a_target_ends_as_a_user_that_owns_nothing_and_is_not_root(target: str) -> None:
    assert re.findall(r"^USER (.+)$", lineage(target), re.MULTILINE) == [f"{USER}:{USER}"]
    assert lineage(target).rstrip().endswith(f"USER {USER}:{USER}")


@pytest.mark.parametrize("target", ["node", "operator"])
def test_no_pip_and_no_build_tool_is_in_the_image(target: str) -> None:
    assert not re.search(r"pip install|apt-get", lineage(target))
    assert re.search(r"""find / -xdev .*-name 'pip' -o -name 'pip-\*'.*\n.*exit 1""", lineage(target)), (
        "the build looks"
    )


def test_nothing_of_the_operators_is_copied_for_the_nodes_image() -> None:
    from_stages = set(re.findall(r"^COPY --from=(\S+)", lineage("node"), re.MULTILINE))
    assert from_stages == {"dependencies", "package-edge", "package-node"}
    assert re.findall(r"-r locks/(\S+)\.txt", lineage("dependencies")) == ["build", "node"]
    assert "COPY operator" not in stages()["package-node"][1]


def test_the_operators_target_is_the_last_one_so_it_is_built_by_default() -> None:
    assert list(stages())[-1] == "operator"


def test_every_image_starts_from_the_base_that_was_asked_for() -> None:
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm\n" in DOCKERFILE
    starts = {name: base for name, (base, _) in stages().items() if base not in stages()}
    assert starts.pop("edge-wheel") == "scratch", "a file for releases"
    assert set(starts.values()) == {"${BASE_IMAGE}"}


def test_the_compiled_edge_is_built_of_its_own_files_and_of_locked_crates() -> None:
    """So that it comes from the cache while edge/ is unchanged."""
    copied = re.findall(r"^COPY (.+) \S+$", lineage("edge"), re.MULTILINE)
    assert copied == ["locks/build.txt", "edge/Cargo.toml edge/Cargo.lock", "edge"]
    assert "cargo fetch --quiet --locked" in stages()["rust"][1]
    assert "CARGO_NET_OFFLINE=true" in stages()["edge"][1]


def test_the_projects_own_files_are_copied_only_after_everything_that_is_fetched() -> None:
    """So that a change of the code fetches nothing again."""
    for name, (_, body) in stages().items():
        fetches = re.search(r"apt-get update|cargo fetch|pip install|install --no-compile", body)
        copies = re.findall(r"^COPY (?!--from)(.+) \S+$", body, re.MULTILINE)
        own = [copied for copied in copies if not copied.startswith(("locks/", "edge/Cargo."))]
        assert not fetches or not own, name
        if own:
            assert re.findall(r"pip (?:wheel|install)(?!.*--no-index)", body) == [], name


def test_it_names_no_proxy_no_package_index_and_no_secret() -> None:
    assert not re.search(r"^(?:ARG|ENV) .*(?:proxy|index|token|password)", DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    assert not re.search(r"https?://", "".join(body for _, body in stages().values()))
    fetched = [body for _, body in stages().values() if "--require-hashes" in body]
    assert len(fetched) == 4
    assert all("--mount=type=secret,id=pip.conf" in body for body in fetched)


def test_pip_installs_what_is_locked_and_nothing_else() -> None:
    """From the network by hash, wheels only; the one package that is published as sources is built by locked tools."""
    locked = set()
    for name, (_, body) in stages().items():
        for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel)(?:[^&]|&(?!&))*", body):
            if "--no-index" not in command:
                assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(command.split()), name
                assert ("--no-binary" in command) == (name == "dependencies-rebalance")
                locked.add(re.search(r"-r (locks/\S+)", command)[1])  # type: ignore[index]
    assert locked == {str(path.relative_to(ROOT)) for path in (ROOT / "locks").iterdir()} - {"locks/dev.txt"}


def test_the_pods_user_is_the_images() -> None:
    assert f"runAsUser: {USER}\n" in (CHART / "templates" / "_helpers.tpl").read_text()


def test_the_build_context_has_what_is_copied_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!").partition("/")[0] for line in lines if line.startswith("!")}
    assert "!edge" not in lines, "what its tests and linters leave there would take it out of the cache"
    copied = {
        source
        for _, body in stages().values()
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", body, re.MULTILINE)
        for source in sources.split()
    }
    assert allowed == {source.partition("/")[0] for source in copied}


def test_the_chart_names_the_image_that_the_dockerfile_says_how_to_build() -> None:
    values, version = read(CHART / "values.yaml"), project()["project"]["version"]
    image = values["image"]["repository"]
    images = {"node": image, "operator": f"{image}-operator", "rebalance": values["rebalanceImage"]["repository"]}
    for target, name in images.items():
        assert re.search(rf"--target {target} +-t {name}:{re.escape(version)} ", DOCKERFILE)
