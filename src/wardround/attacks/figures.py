"""Figures of the attacks: attack_*.svg and .png among the run's figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from wardround.attacks.inversion import Picture
from wardround.report.render.style import COLOURS, STYLE, WIDTH, as_svg, figure, name_rows, save_png
from wardround.runs.folder import write_atomically

WITHOUT, WITH = COLOURS[1], COLOURS[0]
CLAIM = COLOURS[6]
LEAST_HEIGHT, PER_ARM = 1.1, 0.32
LEAST_ERROR = 1e-9  # smaller ones are drawn here


def draw(content: Mapping[str, Any], pictures: Sequence[Picture], folder: Path) -> list[str]:
    """Write the figures that the results allow, and return their names."""
    drawings: dict[str, Callable[[], Figure | None]] = {
        "attack_inversion": lambda: inversion(content),
        "attack_pictures": lambda: reconstructions(content, pictures),
        "attack_membership": lambda: membership(content),
        "attack_canary": lambda: canary(content),
    }
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, make in drawings.items():
        for suffix in ("svg", "png"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)  # of an earlier attack with other options
        with mpl.rc_context(STYLE):
            drawing = make()
            if drawing is not None:
                write_atomically(folder / f"{name}.svg", as_svg(drawing, name).encode())
                save_png(drawing, folder / f"{name}.png")
                names.append(name)
    return names


def canary(content: Mapping[str, Any]) -> Figure | None:
    """Claim and bound at the worst site of each arm."""
    arms = {
        name: max(sites, key=lambda audit: audit["bound"]) for name, sites in content.get("canary", {}).items() if sites
    }
    if not arms:
        return None
    drawing = figure(LEAST_HEIGHT + PER_ARM * len(arms))
    axes = drawing.subplots()
    for place, audit in enumerate(arms.values()):
        colour = WITH if audit["holds"] else WITHOUT
        axes.barh(place, audit["bound"], height=0.5, color=colour)
        axes.plot([audit["claim"]], [place], "|", color=CLAIM, markersize=16, markeredgewidth=2)
        word = "" if audit["can_fail"] else "  (too large to test)"
        axes.annotate(
            f"{audit['bound']:.2f} of {audit['claim']:.{1 if audit['claim'] < 100 else 0}f}{word}",
            (max(audit["bound"], audit["claim"]), place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    name_rows(axes, list(arms))
    largest = max(max(audit["claim"], audit["bound"]) for audit in arms.values())
    smallest = max(min(audit["claim"] for audit in arms.values()), 0.1)
    if largest / smallest > 50:
        axes.set_xscale("log")
        axes.set_xlim(smallest / 20, largest * 12)
    else:
        axes.set_xlim(0, largest * 1.35)
    axes.set_xlabel("epsilon: lower bound from the attack (bar), claimed (line)")
    return drawing


def membership(content: Mapping[str, Any]) -> Figure | None:
    arms = {name: of_arm for name, of_arm in content.get("membership", {}).items() if "threshold" in of_arm}
    arms = {name: of_arm for name, of_arm in arms.items() if "auc" in of_arm["threshold"]}
    if not arms:
        return None
    drawing = figure(LEAST_HEIGHT + 0.3 + PER_ARM * len(arms))
    axes = drawing.subplots()
    kinds = (("threshold", "by threshold on the loss", "o", -0.12), ("likelihood_ratio", "by shadow models", "s", 0.12))
    for kind, label, marker, shift in kinds:
        named = False
        for place, (name, of_arm) in enumerate(arms.items()):
            measured = of_arm.get(kind)
            if not measured or "auc" not in measured:
                continue
            colour = WITHOUT if content["arms"][name]["epsilon"] is None else WITH
            axes.plot(measured["interval"], [place + shift] * 2, color=colour, linewidth=1.4)
            axes.plot([measured["auc"]], [place + shift], marker, color=colour, markersize=5, linestyle="none")
            if not named:  # the legend's marker is grey: colours stand for protection
                axes.plot([], [], marker, color="#555555", label=label, linestyle="none")
                named = True
    for label, colour in (("without protection of patients", WITHOUT), ("with it", WITH)):
        axes.plot([], [], "-", color=colour, label=label)
    axes.axvline(0.5, color="#777777", linewidth=1, linestyle=":")
    name_rows(axes, list(arms))
    axes.set_xlabel("area under the curve, training rows against test rows; 0.5 is chance")
    drawing.legend(loc="outside lower center", ncols=2, fontsize=8)
    return drawing


def inversion(content: Mapping[str, Any]) -> Figure | None:
    """Error of each reconstructed row, and of the best guess without an update."""
    arms = {n: of_arm for n, of_arm in content.get("inversion", {}).get("arms", {}).items() if "without" in of_arm}
    if not arms:
        return None
    shown = _shown(content, arms)
    drawing = figure(LEAST_HEIGHT + 0.3 + PER_ARM * len(shown))
    axes = drawing.subplots()
    for place, (_, key, rows) in enumerate(shown):
        at = [place] * len(rows)
        errors = [max(row["error"], LEAST_ERROR) for row in rows]
        guesses = [min(row["guess_error"], row["nearest_error"]) for row in rows]
        axes.plot(errors, at, "o", color=WITHOUT if key == "without" else WITH, alpha=0.8)
        axes.plot(guesses, at, "|", color=CLAIM, markersize=11, markeredgewidth=1.5)
    for label, look in _INVERSION_LEGEND.items():
        axes.plot([], [], linestyle="none", label=label, **look)
    axes.set_xscale("log")
    name_rows(axes, [label for label, _, _ in shown])
    axes.set_xlabel("mean squared error of reconstructed rows; left of the line, a patient is exposed")
    drawing.legend(loc="outside lower center", ncols=3, fontsize=8)
    return drawing


_INVERSION_LEGEND: dict[str, dict[str, Any]] = {
    "from an unprotected update": {"marker": "o", "color": WITHOUT},
    "from a protected update": {"marker": "o", "color": WITH},
    "best guess without an update": {"marker": "|", "color": CLAIM, "markersize": 11, "markeredgewidth": 1.5},
}


def _shown(content: Mapping[str, Any], arms: Mapping[str, Any]) -> list[tuple[str, str, list[Any]]]:
    """The result from an unprotected update is shown once, at an arm without protection if there is one."""
    bare = any(of_arm["with"] is None for of_arm in arms.values())
    lines = []
    for name, of_arm in arms.items():
        hidden = " (hidden in a sum)" if content["arms"][name]["secure_sum"] and of_arm["with"] is None else ""
        if of_arm["with"] is None:
            lines.append((f"{name}{hidden}", "without", of_arm["without"]["rows"]))
            continue
        if not bare:
            lines.append((f"{name}, without noise", "without", of_arm["without"]["rows"]))
            bare = True
        lines.append((name, "with", of_arm["with"]["rows"]))
    return lines


def reconstructions(content: Mapping[str, Any], pictures: Sequence[Picture]) -> Figure | None:
    """Patients' images and their reconstructions; only where they may be shown."""
    if not pictures:
        return None
    labels = ["the image", *pictures[0].reconstructions, "best guess\nwithout an update"]
    width, gap, head = min(1.35, (WIDTH - 0.2) / len(labels) - 0.08), 0.08, 0.42
    top = 0.24 if content["synthetic"] else 0.0
    height = top + head + len(pictures) * (width + gap)
    drawing = Figure(figsize=(WIDTH, height))
    if top:  # inside the picture, which may end up on a slide
        drawing.text(0.1 / WIDTH, 1 - 0.04 / height, "SYNTHETIC: no patient", fontsize=9, color="#a33c00", va="top")
    for row, picture in enumerate(pictures):
        images = [picture.true, *picture.reconstructions.values(), picture.guess]
        for column, (label, image) in enumerate(zip(labels, images, strict=True)):
            x, y = 0.1 + column * (width + gap), height - top - head - row * (width + gap) - width
            axes = drawing.add_axes((x / WIDTH, y / height, width / WIDTH, width / height))
            low, high = float(picture.true.min()), float(picture.true.max())
            axes.imshow(image[0], cmap="gray", vmin=low, vmax=high, interpolation="none")
            axes.set_axis_off()
            if not row:
                drawing.text(x / WIDTH, (y + width + 0.03) / height, label, fontsize=8, va="bottom", linespacing=1.1)
    return drawing
