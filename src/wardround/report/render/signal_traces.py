"""Example recordings of each site, as a monitor would show them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence
from wardround.report.render.style import WIDTH

MOST_OF_SITE = 3
MOST_CHANNELS = 4
CHANNEL_HEIGHT = 0.42  # inches


def traces(evidence: Evidence) -> Figure | None:
    """A row for each site, a panel for each recording, a line for each channel."""
    about = evidence.signals
    if not about or not len(evidence.samples.get("images", ())):
        return None
    recordings, captions = evidence.samples["images"], evidence.samples["caption"]
    of_site = {
        site: places[:MOST_OF_SITE]
        for site, places in grouped((str(site), place) for place, site in enumerate(evidence.samples["site"])).items()
    }
    channels = about["channels"][:MOST_CHANNELS]
    head = 0.28 if evidence.synthetic else 0.05
    row_height = 0.5 + CHANNEL_HEIGHT * len(channels)
    height = head + row_height * len(of_site) + 0.35
    drawn = Figure(figsize=(WIDTH, height))
    if evidence.synthetic:  # in the picture itself, which may end up on a slide
        drawn.text(0.1 / WIDTH, 1 - 0.04 / height, "SYNTHETIC: no patient", fontsize=9, color="#a33c00", va="top")
    columns = max(map(len, of_site.values()))
    left, gap = 0.55, 0.15
    width = (WIDTH - left - gap * columns) / columns
    for row, (site, places) in enumerate(of_site.items()):
        top = height - head - row * row_height
        drawn.text(0.1 / WIDTH, (top - 0.02) / height, site, fontsize=9, fontweight="bold", va="top")
        for column, place in enumerate(places):
            x, bottom = left + column * (width + gap), top - row_height + 0.06
            size = CHANNEL_HEIGHT * len(channels)
            axes = drawn.add_axes((x / WIDTH, bottom / height, width / WIDTH, size / height))
            _draw(axes, recordings[place], channels if not column else [""] * len(channels), about["rate"])
            axes.set_title(str(captions[place]), fontsize=8, pad=2, loc="left")
            if row < len(of_site) - 1:
                axes.set_xticklabels([])
            else:
                axes.set_xlabel("seconds" if about["rate"] else "visit", fontsize=8)
    return drawn


def _draw(axes: Axes, recording: np.ndarray, names: list[str], rate: float | None) -> None:
    time = np.arange(recording.shape[-1]) / (rate or 1.0)
    marker = "" if rate else "."
    for place, samples in enumerate(recording[: len(names)]):
        known = ~np.isnan(samples)
        span = float(np.ptp(samples[known])) if known.any() else 0.0
        lowest = float(samples[known].min()) if known.any() else 0.0
        at = len(names) - 1 - place
        if known.any():
            axes.plot(
                time,
                at + 0.9 * (samples - lowest) / (span or 1.0),
                linewidth=0.6,
                color="#1f4e79",
                marker=marker,
                markersize=3,
            )
        else:
            axes.text(
                time[len(time) // 2], at + 0.4, "not recorded", fontsize=7, color="grey", ha="center", va="center"
            )
    axes.set_yticks(
        [len(names) - 0.55 - place for place in range(len(names))] if any(names) else [], names if any(names) else []
    )
    axes.set_xlim(0, time[-1] if len(time) > 1 else 1)
    axes.set_ylim(-0.1, len(names))
    axes.tick_params(labelsize=7, length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
