"""The calls of a concurrent kernel, gathered in the order of the text and then judged together."""

from __future__ import annotations

from collections.abc import Iterator

from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Buffer, Kernel, Role
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.limits import Limits
from tfsearch.prove.protocol.arrivals import arrival_findings
from tfsearch.prove.protocol.flow import flow_findings
from tfsearch.prove.protocol.groups import cluster_findings, group_findings, named_findings
from tfsearch.prove.protocol.registers import register_findings
from tfsearch.prove.protocol.uses import Use, use_of
from tfsearch.prove.site import CallSite
from tfsearch.prove.team.program import called

Finding = tuple[str, Path, str]


class Protocol:
    """What the calls of one kernel add up to."""

    def __init__(self, kernel: Kernel, atoms: AtomTable, limits: Limits) -> None:
        self.kernel = kernel
        self.atoms = atoms
        self.limits = limits
        self.uses: list[Use] = []
        used = [atoms[name] for name in called(kernel.body) if name in atoms]
        self._flows = any(atom.is_async or atom.has_proxies for atom in used)
        self.owners: dict[str, Role | None] = {}
        self.found: list[Finding] = []

    def alloc(self, buffer: Buffer, role: Role | None) -> None:
        """Note which collective allocates a buffer."""
        self.owners[buffer.name] = role

    def call(self, site: CallSite) -> None:
        """Note a legal call."""
        atom = site.atom
        if self._flows or atom.effects.synchronises or len(atom.parts) > 1:
            self.uses.append(use_of(site))
        for operand in site.windows:
            buffer = operand.buffer
            if buffer.space.is_register and self.owners.get(buffer.name) is not site.role:
                owner = self.owners.get(buffer.name)
                have = "the whole team" if owner is None else f"role {owner.name}"
                self.found.append(
                    (
                        "tir.register-owner",
                        site.path,
                        f"operand {operand.spec.name} of {site.atom.id} is {buffer.name}, which "
                        f"{have} allocates; registers are used where they are allocated",
                    )
                )

    def findings(self) -> Iterator[Finding]:
        """(code, place, message) of everything that does not add up."""
        yield from self.found
        if self.found:
            return
        yield from arrival_findings(self.kernel, self.uses)
        yield from named_findings(self.kernel, self.uses)
        yield from group_findings(self.uses)
        yield from cluster_findings(self.kernel, self.uses)
        yield from register_findings(self.kernel, self.limits, self.uses)
        if self._flows:
            yield from flow_findings(self.kernel, self.uses)
