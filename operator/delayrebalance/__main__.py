"""python -m delayrebalance --registry ...: looks at the load to come, and proposes moves. `--help` has all."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

import click
from delayapi.options import DURATION

from delayrebalance import report
from delayrebalance.maps import read_map
from delayrebalance.model import ClusterMap, RebalanceError, SearchSettings, Study
from delayrebalance.run import study_cluster
from delayrebalance.session import require


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--registry", required=True, help="sqlite:PATH or kube:NAMESPACE/CLUSTER")
@click.option("--dry-run", is_flag=True, help="Print what would be proposed, and write nothing")
@click.option("--name", help="In Kubernetes, the DelayRebalance that gets the plan  [default: CLUSTER-rebalance]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("--horizon", "horizon_ms", type=DURATION, help="How far ahead  [default: as the cluster says, else 24h]")
@click.option(
    "--slot", "slot_ms", type=DURATION, help="The slots of time that loads are summed in  [default: likewise, else 5m]"
)
@click.option(
    "--threshold", type=float, help="A node is hot above so many times the mean  [default: likewise, else 1.5]"
)
@click.option("--max-moves", type=int, help="The most moves of a plan  [default: likewise, else 100]")
@click.option("--tolerance", type=float, help="How far above the lower bound is good enough  [default: 0.05]")
@click.option(
    "--exclude", "excluded_topics", multiple=True, metavar="TOPIC", help="A topic whose shards stay; may be repeated"
)
@click.option("--history", metavar="DIRECTORY", help="Keep what the nodes said there, as Parquet")
@click.option(
    "--silent", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
    help="When a node does not answer",
)  # fmt: skip
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="The token to show nodes, where they ask who calls; it is for their listener with TLS, `tokens`",
)
@click.option("--master", help="Spark's master  [default: spark-submit's, else local[*]]")
def main(
    registry: str,
    dry_run: bool,
    name: str | None,
    as_json: bool,
    silent: str,
    history: str | None,
    master: str | None,
    token_file: str,
    **wished: Any,
) -> None:
    """Look at the messages that fall due on each node, and propose which shards to move before a hot slot arrives.

    In Kubernetes the plan becomes a DelayRebalance's; elsewhere it is printed, as JSON.
    """
    try:
        require()
        kube = _Kube(registry, name) if registry.startswith("kube:") else None
        if kube is not None and not dry_run and (why := kube.why_it_stays()) is not None:
            click.echo(f"nothing is proposed: DelayRebalance {kube.name} {why}", err=True)
            return
        settings = _settings(kube.settings() if kube else SearchSettings(), wished)
        by_token = bool(token_file)
        cluster = kube.read_map(by_token=by_token) if kube else read_map(registry, by_token=by_token)
        found = study_cluster(
            cluster, settings, skip_silent=silent == "skip", keep_in=history, master=master, token_file=token_file
        )
        _put(found, cluster, settings, kube, dry_run=dry_run, as_json=as_json)
    except RebalanceError as error:
        click.echo(f"rebalance: {error}", err=True)
        sys.exit(1)


def _settings(base: SearchSettings, wished: dict[str, Any]) -> SearchSettings:
    excluded = frozenset(wished.pop("excluded_topics")) | base.excluded_topics
    given = {name: value for name, value in wished.items() if value is not None}
    return replace(base, excluded_topics=excluded, **given)


def _put(
    found: Study, cluster: ClusterMap, settings: SearchSettings, kube: _Kube | None, *, dry_run: bool, as_json: bool
) -> None:
    from delayrebalance.proposal import to_plan

    if dry_run and not as_json:
        from rich.console import Console

        report.print_study(found, Console(), settings.horizon_ms)
        return
    plan = to_plan(found, cluster, settings, now_ms=time.time_ns() // 1_000_000)
    if kube is None or dry_run:
        values = plan.model_dump(mode="json", by_alias=True, exclude_none=True) if found.moves else None
        click.echo(json.dumps({**report.as_json(found), "plan": values}))
        return
    click.echo(found.why, err=True)
    click.echo(kube.publish(plan), err=True)


class _Kube:
    """A DelayCluster and its DelayRebalance."""

    def __init__(self, registry: str, name: str | None) -> None:
        try:
            from delayoperator.kube.api import Api, kube_transport
            from delayoperator.resources import names
            from delayregistry.kube import Credentials
        except ImportError as error:
            raise RebalanceError(f"{registry} needs {error.name}: pip install 'delaycluster[operator]'") from None
        self.registry = registry
        self.namespace, _, self.cluster = registry.removeprefix("kube:").partition("/")
        if not self.namespace or not self.cluster:
            raise RebalanceError(f"--registry {registry}: expected kube:NAMESPACE/CLUSTER")
        self.name = name or names.rebalance(self.cluster)
        try:
            self.api = Api(kube_transport(Credentials.from_environment()))
        except OSError as error:
            raise RebalanceError(str(error)) from error
        self._object = self._get_cluster()

    def why_it_stays(self) -> str | None:
        from delayrebalance import publish

        return publish.why_it_stays(self._rebalance())

    def settings(self) -> SearchSettings:
        from delayrebalance.spec import settings_of

        return settings_of(self._object, self._rebalance())

    def read_map(self, *, by_token: bool) -> ClusterMap:
        from delayoperator.kube.views import locations_of

        generation = self._object["metadata"].get("generation")
        return read_map(self.registry, locations_of(self._object), generation, by_token=by_token)

    def publish(self, plan: Any) -> str:
        from delayrebalance import publish

        return publish.publish(self.api, self.namespace, self.name, self._object, plan)

    def _rebalance(self) -> dict[str, Any] | None:
        from delayoperator.kube.api import ApiError
        from delayoperator.kube.kinds import DELAY_REBALANCE

        try:
            return self.api.get(DELAY_REBALANCE, self.namespace, self.name)
        except ApiError as error:
            raise RebalanceError(str(error)) from error

    def _get_cluster(self) -> dict[str, Any]:
        from delayoperator.kube.api import ApiError
        from delayoperator.kube.kinds import DELAY_CLUSTER

        try:
            found = self.api.get(DELAY_CLUSTER, self.namespace, self.cluster)
        except ApiError as error:
            raise RebalanceError(str(error)) from error
        if found is None:
            raise RebalanceError(f"there is no DelayCluster {self.cluster} in namespace {self.namespace}")
        return found


if __name__ == "__main__":
    main()
