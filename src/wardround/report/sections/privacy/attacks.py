"""What `wardround attack` measured: a bound on epsilon beside the claim, who was recognised, what was rebuilt.

The attacks write attack.json into the run folder; a folder without one was not attacked.
"""

from collections.abc import Mapping
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.table import CI, Table, decimals, listed, make_table, without_empty
from wardround.report.section import Section
from wardround.report.sections.privacy.private_arms import epsilon_number, epsilon_text

ATTACK_FIGURES = {
    "attack_canary": "Epsilon that is claimed, and what an attack could show of it",
    "attack_pictures": "Images, and what was rebuilt from an update",
    "attack_inversion": "Patients' rows that were rebuilt from an update",
    "attack_membership": "Telling who was trained on",
}
KINDS = {"threshold": "by the loss", "likelihood_ratio": "by shadow models"}
METHODS = {"quotient": "in closed form", "search": "by search"}
CHANCE = 0.5  # AUC of an attack that only guesses


def failed_audit_sentences(evidence: Evidence) -> list[str]:
    """A claim that an attack has disproved; it must stand above everything else."""
    broken = [
        f"{arm} at {audit['site']} (at least {audit['bound']:.2f}, claimed {epsilon_text(audit['claim'])})"
        for arm, audit in _audits(evidence)
        if not audit["holds"]
    ]
    if not broken:
        return []
    return [
        f"THE AUDIT FAILED: an attack shows a larger epsilon than is claimed: {listed(broken)}. The protection does "
        "not do what this report says of it. Do not pass on the models."
    ]


def attack_sentences(evidence: Evidence) -> list[str]:
    quick = " A quick one: it tried less than it could." if (evidence.attack or {}).get("quick") else ""
    return [
        f"The run was attacked with `wardround attack`.{quick}",
        *failed_audit_sentences(evidence),
        *_audit_sentences(evidence),
        *_inversion_sentences(evidence),
        *_membership_sentences(evidence),
    ]


def _part(evidence: Evidence, name: str) -> Mapping[str, Any]:
    """Of attack.json; nothing where that attack was not tried."""
    return (evidence.attack or {}).get(name) or {}


def _audits(evidence: Evidence) -> list[tuple[str, Mapping[str, Any]]]:
    return [(arm, audit) for arm, audits in _part(evidence, "canary").items() for audit in audits]


def _audit_sentences(evidence: Evidence) -> list[str]:
    audits = _audits(evidence)
    passed = [(arm, audit) for arm, audit in audits if audit["holds"]]
    if not passed:
        return []
    arm, closest = max(passed, key=lambda pair: pair[1]["bound"] / pair[1]["claim"])
    text = (
        "Audit: the worst patient was planted and what the site releases was attacked; in "
        f"{len(passed)} of {len(audits)} cases what could be shown stays below the claim. Closest to it: {arm} at "
        f"{closest['site']}, at least {closest['bound']:.2f} shown, {epsilon_text(closest['claim'])} claimed "
        f"(delta {closest['delta']:g})."
    )
    weak = list(dict.fromkeys(arm for arm, audit in passed if not audit["can_fail"]))
    if weak:
        text += f" In {listed(weak)} the claim is so large that no number of draws here could have disproved it."
    return [text]


def _inversion_sentences(evidence: Evidence) -> list[str]:
    attack = _part(evidence, "inversion")
    tried = {name: arm for name, arm in attack.get("arms", {}).items() if arm.get("without")}
    if not tried:
        return []
    plain = [arm["without"] for arm in tried.values()]
    best = max(plain, key=lambda counts: counts["recovered"] / counts["of"])
    most = max(counts.get("recognised", 0) for counts in plain)
    rebuilt = f"From one update without protection, {best['recovered']} of {best['of']} patients' rows were rebuilt"
    recognised = f"Whose row it was, of {attack['candidates']}, showed in {most} of {best['of']} unprotected updates"
    noisy = {name: arm["with"] for name, arm in tried.items() if arm.get("with")}
    if noisy:
        keys = ("recovered", "recognised", "of")
        recovered, known, total = (sum(counts.get(key, 0) for counts in noisy.values()) for key in keys)
        exposed = [name for name, counts in noisy.items() if counts["recovered"]]
        rebuilt += f"; from updates with noise, {recovered} of {total}{f' ({listed(exposed)})' if exposed else ''}"
        recognised += f" and in {known} of {total} with noise"
    return [f"{rebuilt}. (An update of one step on one row: the worst that can be sent.) {recognised}."]


def _membership_sentences(evidence: Evidence) -> list[str]:
    measures = _measures(evidence)
    parts = []
    for noisy, protection in ((False, "without differential privacy"), (True, "with it")):
        arms = [(m["auc"], arm) for arm, _, m in measures if (_epsilon(evidence, arm) is not None) == noisy]
        if arms:
            parts.append(f"{max(arms)[0]:.2f} {protection} ({max(arms)[1]})")
    if not parts:
        return []
    return [
        "Who was trained on: the best attack on a finished model tells members from others with an AUC of "
        f"{listed(parts)}; {CHANCE} is a guess."
    ]


def _measures(evidence: Evidence) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Arm, kind of attack and what it measured over all sites."""
    return [
        (name, kind, arm[kind])
        for name, arm in _part(evidence, "membership").items()
        for kind in KINDS
        if arm.get(kind, {}).get("auc") is not None
    ]


def audit_table(evidence: Evidence) -> Table:
    keys = ("site", "claim", "bound", "limit", "draws", "delta")
    rows = [[arm, *(audit[key] for key in keys), _verdict(audit)] for arm, audit in _audits(evidence)]
    return make_table(
        "audit",
        "The claim, and what an attack could show",
        {
            "arm": None,
            "site": None,
            "epsilon claimed": epsilon_number,
            "at least": decimals,
            "could have shown": decimals,
            "draws": str,
            "delta": "{:g}".format,
            "verdict": None,
        },
        rows,
        "At least: a lower bound on epsilon that an attacker reaches; all bounds together hold with 95 % confidence. "
        "Could have shown: what as many draws would have shown without any noise.",
    )


def _verdict(audit: Mapping[str, Any]) -> str:
    if not audit["holds"]:
        return "FAILED"
    return "not refuted" if audit["can_fail"] else "not refuted, and could not have been"


def membership_table(evidence: Evidence) -> Table:
    rows, shares = [], []
    for arm, kind, measure in _measures(evidence):
        counts = [measure["auc"], *measure["interval"], measure["members"], measure["others"]]
        rows.append([arm, _epsilon(evidence, arm), KINDS[kind], *counts])
        shares.append({point["false_alarms"]: point["share"] for point in measure.get("caught", ())})
    alarms = sorted({alarm for points in shares for alarm in points}, reverse=True)
    rows = [[*row, *map(points.get, alarms)] for row, points in zip(rows, shares, strict=True)]
    return without_empty(
        make_table(
            "membership",
            "Telling who was trained on",
            {
                "arm": None,
                "epsilon": "{:g}".format,
                "attack": None,
                **dict.fromkeys(("AUC", *CI), decimals),
                "members": str,
                "others": str,
                **{f"found at {100 * alarm:g} % false alarms": decimals for alarm in alarms},
            },
            rows,
            f"On the finished models, over all sites. {CHANCE} is a guess; epsilon is empty without differential "
            "privacy.",
        )
    )


def inversion_table(evidence: Evidence) -> Table:
    attack, rows = _part(evidence, "inversion"), []
    for name, arm in attack.get("arms", {}).items():
        if arm.get("without"):
            both = (arm["without"], arm.get("with") or {})
            counts = [counts.get(key) for key in ("recognised", "recovered") for counts in both]
            method = METHODS.get(arm["method"], arm["method"])
            rows.append([name, _epsilon(evidence, name), method, arm["without"]["of"], *counts])
    numbers = ("tried", "recognised, without protection", "with it", "rebuilt, without protection", "rebuilt, with it")
    return make_table(
        "inversion",
        "Rebuilding a patient's row from an update",
        {"arm": None, "epsilon": "{:g}".format, "attack": None, **dict.fromkeys(numbers, str)},
        rows,
        f"Recognised: of {attack.get('candidates', 0)} rows the true one is nearest to what was made of the update. "
        "Rebuilt: besides, what was made is nearer to it than anything that could be had without the update.",
    )


def _epsilon(evidence: Evidence, arm: str) -> float | None:
    value = (_part(evidence, "arms").get(arm) or {}).get("epsilon")
    return None if value is None or value == INFINITE else float(value)


PAGE = """
<h3>Attacks</h3>
{% for sentence in sentences %}<p{% if sentence in alarms %} class="failed"{% endif %}>{{ sentence }}</p>{% endfor %}
{{ show("audit") }}{{ show("inversion") }}{{ show("membership") }}
{% for name, drawing in drawings.items() if name in svgs and not drawing.draw %}
<figure class="drawing tall" id="figure-attack-{{ loop.index }}">{{ svgs[name] | safe }}
<figcaption><b>{{ drawing.title }}.</b></figcaption></figure>
{% endfor %}<h3>What was promised and spent</h3>
"""
SECTION = Section(
    PAGE,
    values={"sentences": attack_sentences, "alarms": failed_audit_sentences},
    tables=(audit_table, inversion_table, membership_table),
    figures={name: Drawing(title) for name, title in ATTACK_FIGURES.items()},
    remarks={"alarms": failed_audit_sentences},
)
