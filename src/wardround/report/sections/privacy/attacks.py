"""Which figures a report has, in its order, and how they are written: SVG for pages, PNG for everything else."""

from collections.abc import Mapping
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.table import Format, Table, decimals, listed, make_table, without_empty
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
    broken = [(arm, one) for arm, one in _audits(evidence) if not one["holds"]]
    if not broken:
        return []
    told = listed(
        [
            f"{arm} at {one['site']} (at least {one['bound']:.2f}, claimed {epsilon_text(one['claim'])})"
            for arm, one in broken
        ]
    )
    return [
        f"THE AUDIT FAILED: an attack shows a larger epsilon than is claimed: {told}. The protection does not do what "
        "this report says of it. Do not pass on the models."
    ]


def attack_sentences(evidence: Evidence) -> list[str]:
    if evidence.attack is None:
        return []
    quick = " A quick one: it tried less than it could." if evidence.attack.get("quick") else ""
    return [
        f"The run was attacked with `wardround attack`.{quick}",
        *failed_audit_sentences(evidence),
        *_audit_words(evidence),
        *_inversion_words(evidence),
        *_member_words(evidence),
    ]


def _audits(evidence: Evidence) -> list[tuple[str, Mapping[str, Any]]]:
    found = (evidence.attack or {}).get("canary") or {}
    return [(arm, one) for arm, sites in found.items() for one in sites]


def _audit_words(evidence: Evidence) -> list[str]:
    audits = _audits(evidence)
    held = [(arm, one) for arm, one in audits if one["holds"]]
    if not held:
        return []
    weak = list(dict.fromkeys(arm for arm, one in held if not one["can_fail"]))
    arm, closest = max(held, key=lambda pair: pair[1]["bound"] / pair[1]["claim"])
    told = (
        "Audit: the worst patient was planted and what the site releases was attacked; in "
        f"{len(held)} of {len(audits)} cases what could be shown stays below the claim. Closest to it: {arm} at "
        f"{closest['site']}, at least {closest['bound']:.2f} shown, {epsilon_text(closest['claim'])} claimed "
        f"(delta {closest['delta']:g})."
    )
    if weak:
        told += f" In {listed(weak)} the claim is so large that no number of draws here could have disproved it."
    return [told]


def _inversion_words(evidence: Evidence) -> list[str]:
    arms = ((evidence.attack or {}).get("inversion") or {}).get("arms", {})
    open_ = {name: found["without"] for name, found in arms.items() if found.get("without")}
    if not open_:
        return []
    best = max(open_.values(), key=lambda found: found["recovered"] / found["of"])
    told = f"From one update without protection, {best['recovered']} of {best['of']} patients' rows were rebuilt"
    noisy = {name: found["with"] for name, found in arms.items() if found.get("with")}
    if noisy:
        rebuilt, tried = (sum(found[key] for found in noisy.values()) for key in ("recovered", "of"))
        exposed = [name for name, found in noisy.items() if found["recovered"]]
        told += f"; from updates with noise, {rebuilt} of {tried}{f' ({listed(exposed)})' if exposed else ''}"
    most = max(found.get("recognised", 0) for found in open_.values())
    more = f" Whose row it was, of {_candidates(evidence)}, showed in {most} of {best['of']} unprotected updates"
    if noisy:
        more += f" and in {sum(found.get('recognised', 0) for found in noisy.values())} of {tried} with noise"
    return [f"{told}. (An update of one step on one row: the worst that can be sent.){more}."]


def _candidates(evidence: Evidence) -> int:
    return int(((evidence.attack or {}).get("inversion") or {}).get("candidates", 0))


def _member_words(evidence: Evidence) -> list[str]:
    found = _measures(evidence)
    if not found:
        return []
    parts = []
    for noisy, words in ((False, "without differential privacy"), (True, "with it")):
        arms = [(one["auc"], arm) for arm, _, one in found if (_epsilon(evidence, arm) is not None) == noisy]
        if arms:
            parts.append(f"{max(arms)[0]:.2f} {words} ({max(arms)[1]})")
    return [
        "Who was trained on: the best attack on a finished model tells members from others with an AUC of "
        f"{listed(parts)}; {CHANCE} is a guess."
    ]


def _measures(evidence: Evidence) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Arm, kind of attack and what it measured over all sites."""
    arms = (evidence.attack or {}).get("membership") or {}
    return [
        (arm, kind, found[kind])
        for arm, found in arms.items()
        for kind in KINDS
        if kind in found and found[kind].get("auc") is not None
    ]


def audit_table(evidence: Evidence) -> Table | None:
    rows = [
        [arm, one["site"], one["claim"], one["bound"], one["limit"], one["draws"], one["delta"], _verdict(one)]
        for arm, one in _audits(evidence)
    ]
    columns: dict[str, Format | None] = {
        "arm": None,
        "site": None,
        "epsilon claimed": epsilon_number,
        "at least": decimals,
    }
    columns |= {"could have shown": decimals, "draws": str, "delta": "{:g}".format, "verdict": None}
    note = (
        "At least: a lower bound on epsilon that an attacker reaches; all bounds together hold with 95 % confidence. "
        "Could have shown: what as many draws would have shown without any noise."
    )
    return make_table("audit", "The claim, and what an attack could show", columns, rows, note)


def _verdict(one: Mapping[str, Any]) -> str:
    if not one["holds"]:
        return "FAILED"
    return "not refuted" if one["can_fail"] else "not refuted, and could not have been"


def membership_table(evidence: Evidence) -> Table | None:
    found = _measures(evidence)
    alarms = sorted({caught["false_alarms"] for _, _, one in found for caught in one.get("caught", ())}, reverse=True)
    rows = []
    for arm, kind, one in found:
        shares = {caught["false_alarms"]: caught["share"] for caught in one.get("caught", ())}
        head = [arm, _epsilon(evidence, arm), KINDS[kind], one["auc"], *one["interval"], one["members"], one["others"]]
        rows.append([*head, *(shares.get(alarm) for alarm in alarms)])
    columns: dict[str, Format | None] = {"arm": None, "epsilon": "{:g}".format, "attack": None, "AUC": decimals}
    columns |= {"from": decimals, "to": decimals, "members": str, "others": str}
    columns |= {f"found at {100 * alarm:g} % false alarms": decimals for alarm in alarms}
    note = (
        f"On the finished models, over all sites. {CHANCE} is a guess; epsilon is empty without differential privacy."
    )
    return without_empty(make_table("membership", "Telling who was trained on", columns, rows, note))


def inversion_table(evidence: Evidence) -> Table | None:
    arms = ((evidence.attack or {}).get("inversion") or {}).get("arms", {})
    rows = [
        [arm, _epsilon(evidence, arm), METHODS.get(found["method"], found["method"]), *_counts(found)]
        for arm, found in arms.items()
        if found.get("without")
    ]
    columns: dict[str, Format | None] = {"arm": None, "epsilon": "{:g}".format, "attack": None}
    columns |= {"tried": str, "recognised, without protection": str, "with it": str}
    columns |= {"rebuilt, without protection": str, "rebuilt, with it": str}
    note = (
        f"Recognised: of {_candidates(evidence)} rows the true one is nearest to what was made of the update. Rebuilt: "
        "besides, what was made is nearer to it than anything that could be had without the update."
    )
    return make_table("inversion", "Rebuilding a patient's row from an update", columns, rows, note)


def _counts(found: Mapping[str, Any]) -> list[Any]:
    without, with_ = found["without"], found.get("with")
    sides = [(side.get(key) if side else None) for key in ("recognised", "recovered") for side in (without, with_)]
    return [without["of"], *sides]


def _epsilon(evidence: Evidence, arm: str) -> float | None:
    described = ((evidence.attack or {}).get("arms") or {}).get(arm) or {}
    value = described.get("epsilon")
    return None if value is None or value == INFINITE else float(value)


def _values(evidence: Evidence) -> dict[str, Any]:
    return {
        "sentences": attack_sentences(evidence),
        "alarms": failed_audit_sentences(evidence),
        "titles": ATTACK_FIGURES,
    }


PAGE = """
<h3>Attacks</h3>
{% for sentence in sentences %}<p{% if sentence in alarms %} class="failed"{% endif %}>{{ sentence }}</p>{% endfor %}
{{ show("audit") }}{{ show("inversion") }}{{ show("membership") }}
{% for name, title in titles.items() if name in svgs %}
<figure class="drawing tall" id="figure-attack-{{ loop.index }}">{{ svgs[name] | safe }}
<figcaption><b>{{ title }}.</b></figcaption></figure>
{% endfor %}<h3>What was promised and spent</h3>
"""
SECTION = Section(
    PAGE,
    values=_values,
    tables=(audit_table, inversion_table, membership_table),
    figures={name: Drawing(title) for name, title in ATTACK_FIGURES.items()},
    remarks={"alarms": failed_audit_sentences},
)
