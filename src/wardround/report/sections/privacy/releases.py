"""What left the sites."""

from wardround.report.evidence import STAY, Evidence
from wardround.report.render.table import listed
from wardround.report.section import Section
from wardround.report.sections import remarks

UNPROTECTED = (
    "Neither differential privacy nor secure aggregation was used: whoever sees single updates may learn something "
    "about single patients from them."
)
DIRECTIONS = ", and which way clinical columns go with the label, so that an inverted label shows"


def privacy(evidence: Evidence) -> list[str]:
    """What left the sites."""
    size, rounds = (max(arm["cost"][key] for arm in evidence.arms.values()) for key in ("bytes_up", "rounds"))
    pooled = any(arm["algorithm"]["name"] == "pooled" for arm in evidence.results["arms"].values())
    return [
        "In each round each site sent the change of its model's weights, and what its algorithm adds to it (SCAFFOLD's "
        f"control variates, FedNova's step counts): with one seed, all sites together at most {size / 1000:,.1f} KB in "
        f"{rounds} rounds. Their rows stayed where they were"
        + (", except in the arm called pooled, which exists for comparison only." if pooled else "."),
        "The run was across hospitals: each one's own machine trained on its rows, and the coordinator's had none."
        if evidence.deployed
        else "This was a simulation on one machine that could read all sites' rows. Nothing was sent over a network.",
        *remarks(evidence, "privacy"),
        *([] if evidence.protected_arms else [UNPROTECTED]),
        *_preparation(evidence),
        *(
            ["Sites of this study share patients by design; see the table of patients on both sides."]
            if evidence.shares_patients
            else []
        ),
        *(_summaries(evidence) if evidence.deployed else _run_folder(evidence)),
    ]


def _preparation(evidence: Evidence) -> list[str]:
    prepared, lines, shared = evidence.study.get("data", {}), [], []
    if not evidence.of_images:
        if prepared.get("public"):
            lines.append("Columns, their levels and ranges were taken from what is publicly known, not from patients.")
        if prepared.get("schema") == "own":
            lines.append(_own_columns(evidence))
        elif not prepared.get("public"):
            shared += ["the levels of categorical columns"] if prepared.get("categories") == "one-hot" else []
            if prepared.get("missing") not in ("drop", "range"):
                shared += [
                    "which columns have gaps",
                    "a typical value of each column, for sites that never recorded it",
                ]
    if prepared.get("scale") == "federated":
        shared.append("each column's count, sum and sum of squares")
    return [*lines, f"Before training, sites told each other: {'; '.join(shared)}."] if shared else lines


def _own_columns(evidence: Evidence) -> str:
    others = [
        str(arm.get("name", arm.get("algorithm")))
        for arm in evidence.study.get("arms", [])
        if arm.get("data.schema", arm.get("data", {}).get("schema", "own")) != "own"
    ]
    besides = f" In {listed(others)} sites told each other of their columns, for comparison." if others else ""
    return (
        "Each site has columns of its own, and a private adapter from them to the shared part of the model, which "
        f"never left the site; what the columns are was not needed by anybody else.{besides}"
    )


def _summaries(evidence: Evidence) -> list[str]:
    smallest = evidence.deployment.smallest_cell
    facts = evidence.task.report
    return [
        f"No row left its hospital, and {STAY}. For each arm and seed a site told the coordinator, of its test rows: "
        f"how many there are, its metrics, {facts.told} (summaries.jsonl); before training, how many rows it "
        f"has{facts.told_before} and ages{DIRECTIONS if compares_labels(evidence) else ''}.",
        f"{facts.withheld.format(smallest=smallest)}; groups of patients need {evidence.smallest_group}.",
    ]


def compares_labels(evidence: Evidence) -> bool:
    """Not where any arm promises patients privacy, as the sites themselves decide it."""
    return evidence.deployment.compare_labels and not any(arm["example"] for arm in evidence.private_arms.values())


def _run_folder(evidence: Evidence) -> list[str]:
    lines = [
        "The run folder holds a prediction for every test row (predictions.parquet): treat it as you treat the "
        "data. This page holds counts and means; groups below 10 rows and histogram cells below 5 are withheld."
    ]
    count = len(evidence.samples.get("images", ())) + len(evidence.wrong_calls.get("images", ()))
    if count:
        what = "recordings" if evidence.signals else "images"
        origin = "drawn by a program" if evidence.synthetic else f"training and test {what} of single patients"
        lines.append(
            f"This page shows {count} {what}, because the study asks for them (`samples` in its evaluation): {origin}."
        )
    return lines


PAGE = """
<section id="privacy"><h2>Privacy: what left the sites</h2>
<ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{{ part("privacy.attacks") }}{{ part("privacy.spending") }}
</section>"""
SECTION = Section(PAGE, "privacy", "Privacy", {"lines": privacy})
