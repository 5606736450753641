"""The `site.toml` that comes with a kit: what is known is filled in, what only the hospital knows is marked."""

from collections.abc import Sequence
from typing import Any

import tomli_w

from wardround.data.parties import IMAGE
from wardround.deployment.governance.policy import Policy
from wardround.deployment.provisioning.hospital_file import BY_HOSPITAL, BY_PARTY, TO_FILL_IN
from wardround.deployment.vertical.vertical_validation import holder_of, is_vertical
from wardround.study.parser import plain
from wardround.study.schema import Study

IMAGES = "chest-xray"  # the source whose rows are radiographs with findings
AS_IMAGES = ("size", "findings", "uncertain", "clahe")


def site_template(study: Study, name: str, sites: Sequence[str], coordinator: str) -> str:
    keys = {
        "name": name,
        "coordinator": coordinator,
        "sites": list(sites),
        "ca": "ca.pem",
        "key": "site.key",
        "coordinator_key": "coordinator.pub",
        "peers": "peers",
        "state": "state",
        "approved": "approved",
    }
    return "\n".join(
        [
            f"# What {name} brings to the study {study.name}, and what it demands of it.",
            f"# Hash of the study: {study.hash}",
            "# This file is yours and is never sent anywhere. Paths begin at its folder.",
            "",
            tomli_w.dumps(keys),
            "# Your rows, which never leave. In place of `csv` any source may stand, with its own settings.",
            *_named(study),
            tomli_w.dumps({"data": _data(study, name)}),
            *_labels(study, name),
            _policy(Policy()),
        ]
    )


def _data(study: Study, name: str) -> dict[str, Any]:
    """A csv study has settings on which hospitals must agree, such as the target; the file is the hospital's own."""
    options = study.data.options
    if study.data.name == IMAGES and (not is_vertical(study) or IMAGE in study.arms[0].topology.parties[name]):
        return _data_of_images(study)
    if is_vertical(study):
        return _data_of_party(study, name)
    agreed: dict[str, Any] = {"target": f"{TO_FILL_IN}: the column to predict"}
    if study.data.name == "csv":
        agreed = {key: value for key, value in options.items() if key not in ("files", "labels", *BY_HOSPITAL)}
        for key, by_site in (("target", options["targets"]), ("patient", options["patients"])):
            agreed[key] = (by_site or {}).get(name, agreed[key])
        agreed["labels"] = (options["labels"] or {}).get(name)
    return {"source": "csv", "file": f"{TO_FILL_IN}: the path of your CSV file", **plain(agreed)}


def _data_of_images(study: Study) -> dict[str, Any]:
    """Where its radiographs are is the hospital's own; what they become, and which findings, must be alike at all."""
    agreed = {key: study.data.options[key] for key in AS_IMAGES}
    return {
        "source": IMAGES,
        "path": f"{TO_FILL_IN}: your folder of images, their table, or an .npz file",
        **plain(agreed),
    }


def _named(study: Study) -> list[str]:
    known = ("csv", "csv-parties", "at-sites", IMAGES)
    return [] if study.data.name in known else [f"# The study itself names: {study.data.name}"]


def _data_of_party(study: Study, name: str) -> dict[str, Any]:
    """A party's own file: the column that says whose a row is, and at one party what is to be predicted."""
    options, labelled = study.data.options, name == holder_of(study)
    agreed: dict[str, Any] = {"patient": f"{TO_FILL_IN}: the column with the number of the patient"}
    if study.data.name == "csv-parties":
        agreed = {key: value for key, value in options.items() if key not in ("files", *BY_PARTY)}
        for key in ("patient", "visit"):
            agreed[key] = (options[f"{key}s"] or {}).get(name, agreed[key])
    elif labelled:
        agreed["target"] = f"{TO_FILL_IN}: the column to predict"
    if not labelled:
        agreed = {key: value for key, value in agreed.items() if key not in ("target", "positive", "classes", "labels")}
    return {"source": "csv-parties", "file": f"{TO_FILL_IN}: the path of your CSV file", **plain(agreed)}


def _labels(study: Study, name: str) -> list[str]:
    """How a hospital says what its own words mean, where the study does not know."""
    if study.data.name == IMAGES or (is_vertical(study) and name != holder_of(study)):
        return []
    options = study.data.options if study.data.name == "csv" else {}
    if name in (options.get("labels") or {}):
        return []
    classes = options.get("classes") or ("died", "survived")
    return [
        "# If your file has words of its own for the classes, say which class of the study each of them means. Every",
        "# word that occurs must stand here: look twice at 0 and 1, which are not the same everywhere.",
        "# [data.labels]",
        *(f"# {_quoted(f'your word for {word}')} = {_quoted(word)}" for word in classes),
        "",
    ]


def _quoted(text: str) -> str:
    return tomli_w.dumps({"x": text}).removeprefix("x = ").rstrip()


def _policy(default: Policy) -> str:
    return f"""\
# What is demanded of a study before anything trains here. A line that begins with '#' demands nothing.
[policy]
# models = ["logistic"]              # only these; not given: any
# algorithms = ["fedavg", "local"]   # only these; not given: any
most_rounds = {default.most_rounds}
# most_seeds = 50
least_sites = {default.least_sites}                      # whose work is averaged in a round in which this site works
least_rows = {default.least_rows}                      # training rows of this site
smallest_cell = {default.smallest_cell}                    # what counts fewer patients does not leave
# secure_aggregation = true          # refuse a study without it
# most_epsilon = 8.0                 # refuse a study without differential privacy of at most this epsilon
# most_total_epsilon = 10.0          # over all studies together: work stops before patients have paid more
# most_delta = 1e-5                  # of any study; well below one in ten times the number of your patients
# hours = "18:00-06:00"              # local time; may pass midnight
# days = ["mon", "tue", "wed", "thu", "fri"]
"""
