"""The images that a study lets its report show."""

from textwrap import wrap

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.style import WIDTH

MOST_OF_SITE = 6
SIDE_BY_SIDE = 4  # more sites than this stand in two columns
LINES = 3  # of what is written below an image


def samples(evidence: Evidence) -> Figure | None:
    """A row of images for each site, with their labels below them."""
    if not len(evidence.samples.get("images", ())):
        return None
    images, captions = evidence.samples["images"], [str(text) for text in evidence.samples["caption"]]
    of_site: dict[str, list[int]] = {}
    for place, site in enumerate(evidence.samples["site"]):
        of_site.setdefault(str(site), []).append(place)
    of_site = {site: places[:MOST_OF_SITE] for site, places in of_site.items()}
    longest = max(map(len, of_site.values()))
    blocks = 2 if len(of_site) > SIDE_BY_SIDE and longest <= 4 else 1
    gap = 0.1
    side = min(1.25, (WIDTH - 0.2 - 0.3 * (blocks - 1)) / (blocks * longest) - gap)
    letters = int(side / 0.06)  # of the captions' size that fit into the width of an image
    texts = {place: _short(captions[place], letters) for places in of_site.values() for place in places}
    lines = max(text.count("\n") + 1 for text in texts.values())
    rows = -(-len(of_site) // blocks)
    row_height = 0.24 + side + 0.13 * lines + 0.08
    head = 0.24 if evidence.synthetic else 0.0
    height = rows * row_height + 0.05 + head
    drawn = Figure(figsize=(WIDTH, height))
    if head:  # in the picture itself, which may end up on a slide
        drawn.text(0.1 / WIDTH, 1 - 0.04 / height, "SYNTHETIC: no patient", fontsize=9, color="#a33c00", va="top")
    for number, (site, places) in enumerate(of_site.items()):
        row, block = number % rows, number // rows
        left, top = 0.1 + block * (longest * (side + gap) + 0.3), height - head - row * row_height - 0.05
        drawn.text(left / WIDTH, (top - 0.02) / height, site, fontsize=9, fontweight="bold", va="top")
        for column, place in enumerate(places):
            x, y = left + column * (side + gap), top - 0.22 - side
            axes = drawn.add_axes((x / WIDTH, y / height, side / WIDTH, side / height))
            axes.imshow(images[place][0], cmap="gray", vmin=0, vmax=255, interpolation="none")
            axes.set_axis_off()
            text = texts[place]
            drawn.text(x / WIDTH, (y - 0.03) / height, text, fontsize=7, va="top", linespacing=1.15)
    return drawn


def _short(caption: str, letters: int) -> str:
    """In lines of so many letters; what does not fit is counted."""
    names = caption.replace("_", " ").split(", ")
    for kept in range(len(names), 0, -1):
        more = f" +{len(names) - kept}" if kept < len(names) else ""
        lines = wrap(", ".join(names[:kept]) + more, letters, break_long_words=False)
        if len(lines) <= LINES or kept == 1:
            return "\n".join(lines[:LINES])
    return caption
