"""Contracts for import-linter: a module whose name begins with ``_`` is its own
package's, and no module imports itself through others."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class PrivateModules(Contract):
    """No module imports a private module of another package."""

    type_name = "private"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = [
            (importer, private)
            for private in sorted(graph.modules)
            if private.rpartition(".")[2].startswith("_") and not private.endswith("__")
            for importer in sorted(graph.find_modules_that_directly_import(private))
            if not importer.startswith(private.rpartition(".")[0])
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        found: list[tuple[str, str]] = check.metadata["broken"]
        for importer, private in found:
            output.print_error(
                f"{importer} imports {private}, which is private to its package"
            )


class NoCircles(Contract):
    """No module imports itself through others, neither within a function nor for a
    type."""

    type_name = "circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = []
        for imported in sorted(graph.modules):
            imports = graph.find_upstream_modules(imported)
            importers = graph.find_modules_that_directly_import(imported)
            broken += [(importer, imported) for importer in sorted(importers & imports)]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        links: list[tuple[str, str]] = check.metadata["broken"]
        for importer, imported in links:
            output.print_error(
                f"{importer} imports {imported}, which imports it, if through others"
            )
