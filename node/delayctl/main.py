"""`delayctl`: the cluster from a terminal, and `kubectl delay`, the same as a plugin of kubectl.

Commands are loaded when they are called, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any, Final

import click

from delayctl.common import FormerOptions, GivenPlace, place_options

_COMMANDS: Final = {
    "local": ("delayctl.cluster.local:local", "Run a cluster on this machine."),
    "produce": ("delayctl.messages.produce:produce", "Send messages to be delivered later."),
    "consume": ("delayctl.messages.consume:consume", "Receive due messages as a member of a group."),
    "cancel": ("delayctl.messages.cancel:cancel", "Cancel pending messages, by handle or by key."),
    "reschedule": ("delayctl.messages.reschedule:reschedule", "Give pending messages a new time."),
    "pending": ("delayctl.messages.pending:pending", "List messages that are not yet due."),
    "wheel": ("delayctl.cluster.wheel:wheel", "Show the load to come as a heat map."),
    "top": ("delayctl.cluster.top:top", "Watch rates, lateness and the next minutes."),
    "console": ("delayconsole.main:console", "Look at the cluster in a browser."),
    "shards": ("delayctl.cluster.shards:shards", "List shards, move their copies, choose their masters."),
    "nodes": ("delayctl.cluster.nodes:nodes", "List, drain and restart nodes, accept a corrected clock."),
    "rebalance": ("delayctl.cluster.rebalance:rebalance", "Spread the load to come over the nodes."),
    "adopt": ("delayctl.cluster.adopt:adopt", "Rebuild a restored registry from the shards' copies."),
    "groups": ("delayctl.messages.groups:groups", "List, describe and delete consumer groups."),
    "schedules": ("delayctl.messages.schedules:schedules", "Messages that a topic sends again and again."),
    "dlq": ("delayctl.messages.dlq:dlq", "List, redrive and drop dead letters."),
    "sinks": ("delayctl.messages.sinks:sinks", "Deliver a topic's messages by HTTP."),
    "auth": ("delayctl.auth:auth", "Ask what callers may do."),
    "config": ("delayctl.config:config", "Name clusters, and say which of them commands go to."),
    "report": ("delayctl.report.command:report", "Gather what somebody who helps asks for, in an archive."),
    "verify": ("delayctl.cluster.verify:verify", "Check the files of a stopped node or shard."),
    "bench": ("benchmarks.workloads.commands:bench", "Measure the workloads W1 to W5, W9 and W10."),
}


_NOT_IN_KUBERNETES: Final = frozenset(("local", "config", "verify", "bench"))
_OPERATORS_HALF: Final = ("delayoperator", "delaylocal", "delayrebalance")  # not in the nodes' image


class _LazyGroup(click.Group):
    offered: Collection[str] = _COMMANDS

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _OPERATORS_HALF:
                raise
            raise click.UsageError(
                "this needs the operator's half of delaycluster, which is not in the nodes' image: run it where "
                "delaycluster is installed, or in the operator's image"
            ) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if name in self.offered]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.offered:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != "benchmarks":
                raise
            raise click.UsageError(
                f"{cmd_name} is not installed: it comes with a checkout of the project, whose `make setup` installs it"
            ) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@place_options(hidden=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def main(ctx: click.Context, given: GivenPlace, as_json: bool) -> None:
    """Delayed messages: produce, consume, cancel and look.

    Exit codes: 0 done; 1 the task failed (not all acknowledged, too few received); 2 wrong usage or input;
    3 the cluster cannot be reached.
    """
    ctx.obj = FormerOptions(lambda: given, as_json)


class _PluginGroup(_LazyGroup):
    offered = _COMMANDS.keys() - _NOT_IN_KUBERNETES

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """By its own name in what it says, not by its file's, kubectl-delay."""
        return super().make_context(self.name, args, parent, **extra)


@click.group("kubectl delay", cls=_PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "--namespace", metavar="NS", help="The DelayCluster's namespace  [default: the kubeconfig's]")
@click.option("--context", metavar="CTX", help="Of the kubeconfig  [default: the current one]")
@click.option("-c", "--cluster", metavar="NAME", help="The DelayCluster  [default: the only one of its namespace]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plugin(ctx: click.Context, namespace: str | None, context: str | None, cluster: str | None, as_json: bool) -> None:
    """Delayed messages of a DelayCluster: what `delayctl --kube` does, by kubectl's words.

    Exit codes: 0 done; 1 the task failed; 2 wrong usage or input; 3 the cluster cannot be reached.
    """

    def find_place() -> GivenPlace:
        from delayctl.targets.kube_route import whole_name

        return GivenPlace(kube_text=whole_name(cluster, namespace, context))

    ctx.obj = FormerOptions(find_place, as_json)
