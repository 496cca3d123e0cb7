"""What an experiment prints, and whether it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.durability.forks import call


@dataclass
class Report:
    """The failures of an experiment; its figures are printed as they come."""

    failures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print a figure."""
        print(text, flush=True)

    def expect(self, holds: Any, text: str) -> None:
        """Note a failure unless it holds."""
        if not holds:
            self.failures.append(text)
            print(f"FAILED: {text}", flush=True)

    def equal(self, what: str, found: Any, expected: Any) -> None:
        """Note a failure unless both are equal."""
        self.expect(found == expected, f"{what}: {found!r}, not {expected!r}")

    def sound(self, *instances: str) -> None:
        """Check sessions against their journals."""
        for instance, found in zip(instances, call(_findings, instances), strict=True):
            for kind, details in found.items():
                for detail in details:
                    self.expect(False, f"{instance}: {kind}: {detail}")


def _findings(instances: Sequence[str]) -> list[dict[str, list[str]]]:
    from dataclasses import asdict

    from tests.durability.verify import findings

    return [asdict(findings(instance)) for instance in instances]
