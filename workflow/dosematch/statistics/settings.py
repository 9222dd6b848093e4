"""What the statistics and the report need to know about a study; arrives as one JSON text."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dosematch.errors import UserError


class Record(BaseModel):
    """A settings object; keys that only other stages need are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ArmSettings(Record):
    """One arm as the report shows it."""

    name: str
    label: str
    about: str = Field(description="first line of the arm's file: why it exists")
    seeds: list[int] = Field(min_length=1)
    accumulation: Annotated[int, Field(ge=1)] = 1
    cap: int | None = Field(None, description="nominal cap, generated tokens per step; null without training")
    switches: dict[str, Any] = {}


class ContrastSettings(Record):
    """Arm `a` against arm `b`."""

    a: str
    b: str
    label: str


class StatisticsSettings(Record):
    """Bootstrap and decontamination (thinker-spec 13)."""

    resamples: Annotated[int, Field(ge=1)] = 4000
    rng_seed: Annotated[int, Field(ge=0)] = 0
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    decontaminated_suites: list[str] = []


class StudySettings(Record):
    """A study at one scale: its arms and contrasts in order, its suites of panels, and its statistics."""

    study: str
    scale: str
    about: str = Field("", description="what the scale is for")
    seeds: list[int] = Field(min_length=1)
    parent: str = Field(description="the arm that all others start from")
    arms: list[ArmSettings] = Field(min_length=1)
    contrasts: list[ContrastSettings] = []
    panels: list[str] = Field(min_length=1, description="all panels in order")
    suites: dict[str, list[str]] = Field(min_length=1)
    statistics: StatisticsSettings = StatisticsSettings()
    steps: Annotated[int, Field(ge=1)]
    tail_start: Annotated[int, Field(ge=1)]
    verify_slow_panel: str = Field("", description="panel with Verify -> Slow; none when empty")
    token_reference: str = Field("", description="arm whose generated tokens are 100 %; none when empty")

    @property
    def claim_panels(self) -> list[str]:
        """Panels that some suite holds, in order; the rest serves development only."""
        claimed = {panel for panels in self.suites.values() for panel in panels}
        return [panel for panel in self.panels if panel in claimed]

    @property
    def suite_order(self) -> list[str]:
        """Suites by falling number of panels, so that the order does not hang on that of JSON keys."""
        return sorted(self.suites, key=lambda suite: (-len(self.suites[suite]), suite))

    @model_validator(mode="after")
    def _names_exist(self) -> "StudySettings":
        arms = [arm.name for arm in self.arms]
        if len(set(arms)) < len(arms):
            raise ValueError("arms: two arms share a name")
        used = [name for contrast in self.contrasts for name in (contrast.a, contrast.b)]
        for name in filter(None, [*used, self.parent, self.token_reference]):
            if name not in arms:
                raise ValueError(f"arm {name!r} is used but not listed in arms")
        for suite, panels in self.suites.items():
            if not panels or not set(panels) <= set(self.panels):
                raise ValueError(f"suites.{suite}: must name some of the panels and no others, not {panels}")
        for suite in self.statistics.decontaminated_suites:
            if suite not in self.suites:
                raise ValueError(f"statistics.decontaminated_suites: {suite!r} is not one of the suites")
        if self.verify_slow_panel and self.verify_slow_panel not in self.panels:
            raise ValueError(f"verify_slow_panel: {self.verify_slow_panel!r} is not one of the panels")
        if self.tail_start > self.steps:
            raise ValueError(f"tail_start {self.tail_start} is after the last of {self.steps} steps")
        return self


def parse_settings(text: str) -> StudySettings:
    """Settings from JSON text; raises `UserError` naming the first bad key."""
    try:
        return StudySettings.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"--settings: {'.'.join(map(str, first['loc'])) or 'study'}: {first['msg']}") from None
