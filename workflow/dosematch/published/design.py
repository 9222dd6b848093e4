"""What the protocol fixes: seeds, panels, suites, removed questions, numbers of answers (thinker-spec 3, 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dosematch.errors import UserError
from dosematch.published.cells import Cell, Published

VERIFIED_PANEL = "val350"  # the one panel of Table 3A and of the columns val_fast and val_slow
PANEL_OF_COLUMN = {"val_fast": VERIFIED_PANEL, "val_slow": VERIFIED_PANEL}
CLEAN = "_decontam"


@dataclass(frozen=True)
class Design:
    """The protocol, read from its own cells so that a wrong protocol number fails the checks that rest on it."""

    published: Published

    @cached_property
    def seeds(self) -> list[str]:
        """Training seeds, in printed order."""
        return [cell.text for cell in self.published.row("protocol", "parent_seeds").values()]

    @cached_property
    def panels(self) -> dict[str, Cell]:
        """Panel -> number of questions."""
        return dict(self.published.row("protocol", "panels"))

    @cached_property
    def suites(self) -> dict[str, list[str]]:
        """Suite -> its panels: all panels, the in-distribution ones, and every panel by itself."""
        within = [cell.text for cell in self.published.row("protocol", "within_math").values()]
        within = [panel for panel in within if panel in self.panels]  # an unknown name fails a check of its own
        return {"all6": list(self.panels), "within": within, **{panel: [panel] for panel in self.panels}}

    @cached_property
    def removed(self) -> dict[str, list[Cell]]:
        """Panel -> one cell per exposed question, which decontamination removes in every seed (thinker-spec 3.3)."""
        cells = [row["panel"] for row in self.published.rows("exposed_items").values()]
        return {panel: [cell for cell in cells if cell.text == panel] for panel in self.panels}

    @cached_property
    def steps(self) -> Cell:
        """Continuation steps per run."""
        return self.published.need("protocol", "train_steps", "")

    def answers(self, panels: Sequence[str], clean: bool = False, seeds: int | None = None) -> tuple[int, list[Cell]]:
        """Number of answers on `panels` over all (or so many) seeds, and the cells that it follows from.

        Raises `UserError` when no question is left.
        """
        parts = [self.panels[panel] for panel in panels]
        gone = [cell for panel in panels for cell in self.removed[panel]] if clean else []
        total = sum(cell.count for cell in parts) - len(gone)
        if total < 1:
            raise UserError(f"protocol panels: no questions are left on {', '.join(panels)}")
        return (len(self.seeds) if seeds is None else seeds) * total, [*parts, *gone]

    def suite_of(self, column: str) -> tuple[list[str], bool] | None:
        """The panels that a column of Table 1 counts, and whether without exposed questions; None for other columns."""
        name = column.removesuffix(CLEAN)
        panels = self.suites.get(PANEL_OF_COLUMN.get(name, name))
        return None if panels is None else (panels, name != column)
