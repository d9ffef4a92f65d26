"""``tfsearch worker``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tfsearch.cli.output import Output, note
from tfsearch.core.errors import RequestError, UnavailableError

if TYPE_CHECKING:
    from tfsearch.plugin.kinds import Kind


@click.command()
@click.option("--join", default="", metavar="HOST:PORT", help="The fleet's head node.")
@click.option("--head", is_flag=True, help="Be the head node of a new fleet.")
@click.option("--port", type=int, default=6379, metavar="N", help="Port of a head node.")
@click.option(
    "--host", default="", metavar="IP", help="This node's address [head's default: 127.0.0.1]."
)
@click.option(
    "--kind", metavar="NAME", help="A kind of node, or a .toml document: its target and devices."
)
@click.option(
    "--target", "targets", multiple=True, metavar="NAME", help="Measure for a target; repeatable."
)
@click.option(
    "--device", "devices", multiple=True, metavar="NAME", help="Devices [default: all of a target]."
)
@click.option(
    "--compile", "compilers", type=int, metavar="N", help="Compilations at a time [default: cores]."
)
@click.option(
    "--compile-only", is_flag=True, help="Do not measure, on machines with a device neither."
)
@click.pass_obj
def worker(output: Output, **options: Any) -> int:
    """Let this machine measure and compile for a fleet, until it is stopped.

    A fleet has one head node. A machine that runs `tfsearch tune --workers ray:HOST:PORT` is a
    node too: with no --target it only takes part, and neither measures nor compiles.
    """
    from tfsearch.plugin import kinds, registry, remote

    del output
    if bool(options["join"]) == options["head"]:
        raise click.UsageError("give either --join HOST:PORT or --head")
    kind = None if options["kind"] is None else kinds.kind(options["kind"])
    if kind is not None and (options["targets"] or options["devices"]):
        raise click.UsageError("--kind says which target and devices: leave those options out")
    compilers = os.cpu_count() or 1 if kind is None else kind.compile
    if options["compilers"] is not None:
        compilers = options["compilers"]
    if compilers < 0:
        raise RequestError("worker.compilers", f"--compile {compilers}: it must be 0 or more")
    if not 0 < options["port"] < 65536:
        raise RequestError("worker.port", f"--port {options['port']}: it must be from 1 to 65535")
    offered: dict[str, float] = {}
    if kind is not None:
        offered.update(_of_kind(kind, compilers, only=options["compile_only"]))
    for name in options["targets"]:
        target = registry.get(name)
        if options["compile_only"]:
            devices = []
        elif options["devices"]:
            devices = [registry.device(target, one) for one in options["devices"]]
        else:
            devices = [registry.device(target), *target.devices()[1:]]
        offered.update(remote.offers(target, devices, compilers))
    try:
        from tfsearch.measure import cluster
    except ImportError as error:
        raise UnavailableError(
            "fleet.not-installed", f"Ray is not there: {error}; install tfsearch[ray]"
        ) from error
    for name in sorted(offered):
        note(f"offers {name}")
    host = options["host"] or ("127.0.0.1" if options["head"] else "")
    cluster.become_node(
        offered,
        join=options["join"],
        host=host,
        port=options["port"],
        compilers=compilers,
    )
    return 0


def _of_kind(kind: Kind, compilers: int, *, only: bool) -> dict[str, float]:
    """What a node of a kind offers, once it has passed its self-test.

    One that only compiles needs no device, and is not timed.
    """
    from tfsearch.core import settings
    from tfsearch.plugin import registry, remote
    from tfsearch.plugin.node import self_test

    if only:
        return remote.offers(registry.get(kind.target), [], compilers)
    target, devices = kind.place()
    found = self_test(target, devices, settings.load())
    for one in found:
        note(f"{one.check}: {one.message}")
    if found:
        raise UnavailableError(
            "node.unfit",
            f"{len(found)} problems, the first: {found[0].check}: {found[0].message}",
        )
    return remote.offers(target, devices, compilers)
