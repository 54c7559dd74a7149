"""Contracts for import-linter: a module whose name begins with ``_`` is its own
package's, no module imports itself through others, and a room is opened at its doors."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


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


class Doors(Contract):
    """A room is imported as a whole, or by one of the modules of it that are listed.

    These are at most a third of its modules, but in a room that is open."""

    type_name = "doors"

    doors = fields.SetField(subfield=fields.StringField())
    open_rooms = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        doors: set[str] = self.doors  # type: ignore[assignment]
        open_rooms: set[str] = self.open_rooms  # type: ignore[assignment]
        problems = []
        opened: set[str] = set()
        for room in sorted(graph.find_children("mmrepro")):
            modules = graph.find_descendants(room)
            inside = modules | {room}
            opened_here = set()
            for module in sorted(modules):
                others = graph.find_modules_that_directly_import(module) - inside
                if not others:
                    continue
                opened_here.add(module)
                if module not in doors and room not in open_rooms:
                    problems.append(f"{min(others)} opens {module}, which is no door")
            opened |= opened_here
            if room not in open_rooms and 3 * len(opened_here) > len(modules):
                problems.append(
                    f"{room} is opened at {len(opened_here)} of {len(modules)} modules"
                )
        problems += [f"nobody opens {door}" for door in sorted(doors - opened)]
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)
