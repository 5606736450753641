"""Images of which a study lets a report show some."""

from collections.abc import Mapping
from typing import Any

from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.site_descriptions import sample_images


def save_shown_images(plan: Plan, folder: RunFolder, results: Mapping[str, Any]) -> None:
    """Training images of each site, and test images that are called wrongly."""
    samples = sample_images(plan)
    if not samples:
        return
    from wardround.runs.explaining.wrong_calls import wrong_calls  # methods of explanation, which few studies need

    folder.write_samples(samples)
    if calls := wrong_calls(plan, folder, results):
        folder.write_wrong_calls(calls)
