"""The design of the study: data, sites, model, training, split and intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.render.table import listed
from wardround.report.section import Section
from wardround.report.sections.answer import participation_sentence
from wardround.study.schema import CHOSEN, KIND_OF_SETTING

OF_COLUMNS = ("missing", "indicator", "categories", "least_level")  # settings that say nothing of images


def design(evidence: Evidence) -> dict[str, str]:
    study, interval = evidence.study, evidence.results["interval"]
    model, data, partition = dict(study["model"]), dict(study["data"]), dict(study["sites"])
    evaluation = study["evaluation"]
    varied = [name for name in evaluation["vary"] if not (name == "split" and evaluation.get("split") == "given")]
    split = f"{100 * evaluation['test_share']:g} % of each site's patients for testing, stratified by "
    split += evidence.task.report.strata
    if evaluation.get("split") == "given":
        split = "the one that the source comes with"
    if evaluation.get("validation_share"):
        split += f", {100 * evaluation['validation_share']:g} % for validation"
    return {
        **({"deployment": _deployment(evidence)} if evidence.deployed else {}),
        "data": _settings(data.pop("source"), data, OF_COLUMNS if evidence.of_images else ()),
        "sites": _settings(partition.pop("partition"), partition),
        "model": _model(model),
        "training": _training(study["training"]) + _tuned(study),
        **({"privacy": privacy_settings(study["privacy"])} if study.get("privacy") else {}),
        **_aggregation(study.get("aggregation") or {}),
        **_compression(study.get("compression") or {}),
        "split": split,
        "seeds": f"{evidence.seeds}; a seed draws anew: {listed(varied or ['nothing'])}",
        "primary metric": f"{evidence.primary_word}{_threshold(evidence)}",
        "intervals": f"{interval['method']}; they cover {interval['covers']}. Differences are corrected by "
        f"{interval['correction']}'s rule in a single step: arms, hospitals and their mean are one family in each "
        "metric and variant",
    }


def _model(model: dict[str, Any]) -> str:
    start = model.pop("start_from", None)
    text = _settings(model.pop("kind"), model)
    if start is None:
        return text
    named = Path(start.get("run") or start.get("bundle") or "").name
    arm = f", arm {start['arm']}" if start.get("arm") else ""
    return f"{text}, starting from {named}{arm} (digest {start['digest'][:12]}), unless an arm says otherwise"


def _training(training: Mapping[str, Any]) -> str:
    text = (
        f"{training['rounds']} rounds of {training['local_epochs']} local epochs, batches of {training['batch_size']}"
    )
    text += f", {training['optimiser']}, learning rate {training['lr']:g}"
    if training.get("lr_decay"):
        text += f", times {training['lr_decay']['factor']:g} every {training['lr_decay']['every']} rounds"
    if training.get("class_weights", "none") != "none":
        text += f", class weights {training['class_weights']}"
    if training.get("oversample"):
        text += f", oversampling {training['oversample']:g}"
    if mix := training.get("mix"):
        detail = f"alpha {mix['alpha']:g}" if mix["kind"] == "mixup" else f"{mix['neighbours']} neighbours"
        text += f", rows mixed by {mix['kind']} ({detail})"
    if training.get("augment"):
        changes = ", ".join(f"{name} {_plainly(value)}" for name, value in training["augment"].items())
        text += f", images changed at random ({changes})"
    return text


def _tuned(study: Mapping[str, Any]) -> str:
    """What stands in the file for these settings is only the first that was tried."""
    space = study.get("tuning", {}).get("space", {})
    return f"; each seed chose for itself: {', '.join(space)}" if space else ""


def _aggregation(block: Mapping[str, Any]) -> dict[str, str]:
    """Nothing where the study has no such block; arms may still have their own."""
    if block.get("rule", "mean") == "mean":
        return {}
    unused = {"before": "none", "momentum": 0.0}
    own = {name: value for name, value in block.items() if name != "rule" and value != unused.get(name)}
    if block.get("before") != "bucketing":
        own.pop("bucket_size", None)
    return {"aggregation": f"{_settings(block['rule'], own)} of the sites' updates, unless an arm says otherwise"}


def _compression(block: Mapping[str, Any]) -> dict[str, str]:
    """Nothing where the study has no such block; arms may still have their own."""
    if block.get("kind", "none") == "none":
        return {}
    own = {name: block[name] for name, kind in KIND_OF_SETTING.items() if kind == block["kind"] and name in block}
    return {"compression": f"{_settings(block['kind'], own)} of updates, unless an arm says otherwise"}


def _threshold(evidence: Evidence) -> str:
    """From which score on the positive class of two is called, for the metrics that need a call."""
    predicted = evidence.arms[evidence.main_arm].get("predicted_classes") or {}
    fixed = evidence.study["evaluation"].get("threshold", CHOSEN)
    if evidence.findings or len(evidence.classes) != 2:
        return ""
    rule = f"{evidence.classes[1]} is called from a score of"
    if fixed != CHOSEN:
        return f"; {rule} {fixed:g} on, as the study says"
    if evidence.deployed:
        return (
            f"; each hospital calls {evidence.classes[1]} from the score on that its own validation rows have chosen "
            "(best sensitivity + specificity), from 0.5 on where it has too few of them or none"
        )
    threshold = predicted.get("threshold")
    if threshold and threshold["chosen"]:
        return (
            f"; {rule} {threshold['mean']:.2f} on ({evidence.main_arm}, mean over seeds), chosen on "
            "validation rows for the best sensitivity + specificity"
        )
    return f"; {rule} 0.5 on, because there are too few validation rows to choose on, or none"


def _deployment(evidence: Evidence) -> str:
    """Who had to take part in a round, and who did not."""
    agreed, count = evidence.deployment, len(evidence.site_counts)
    needed = "all of them" if agreed.quorum is None else f"{agreed.quorum} of them"
    closed = f"a round closed with the work of {needed}"
    if agreed.deadline is not None:
        closed += f", after {agreed.deadline:g} seconds if not all had answered"
    present = participation_sentence(evidence.results)
    present = present or "All that were invited took part in every round that asked them."
    return f"across {count} hospitals, whose rows stayed where they are; {closed}. {present}"


def _settings(name: str, options: dict[str, Any], without: tuple[str, ...] = ()) -> str:
    hidden = {"files", "path", *(["indicator"] if options.get("missing") == "drop" else []), *without}
    hidden |= {key for key, value in options.items() if value in ([], {})}  # nothing was said
    shown = ", ".join(f"{key} {_plainly(value)}" for key, value in options.items() if key not in hidden)
    return f"{name} ({shown})" if shown else name


def _plainly(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plainly(item)}" for key, item in value.items())
    if isinstance(value, list):
        pairs = all(isinstance(item, list) for item in value)
        return " / ".join("-".join(map(str, item)) if pairs else _plainly(item) for item in value)
    return str(value)


def privacy_settings(blocks: Mapping[str, Any]) -> str:
    units = {"example": "patients", "site": "whole sites"}
    parts = [_differential_privacy(blocks[name], unit) for name, unit in units.items() if blocks.get(name)]
    parts += ["secure sum"] if blocks.get("secure_sum") is not None else []
    return "; ".join(parts) + ", unless an arm says otherwise"


def _differential_privacy(block: Mapping[str, Any], unit: str) -> str:
    noise = f", noise {block['noise']:g}" if block.get("noise") else ""
    if block.get("noise_schedule"):
        noise += f", in the last round {block['noise_schedule']['last']:g} times the noise of the first"
    if block["clip"] == "none":
        return f"no clip, so that no epsilon holds for {unit}{noise}"
    clip = f"{'an adaptive clip from' if block.get('adaptive') else 'clip'} {block['clip']:g}"
    return f"differential privacy of {unit}: epsilon {block['epsilon']:g}, delta {block['delta']:g}, {clip}{noise}"


PAGE = """
<section id="design"><h2>Design</h2>
<dl>{% for name, text in design.items() %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}
<dt>arms</dt><dd>{{ evidence.arms | join(", ") }}
{%- if evidence.partial %}; with some sites only: {{ evidence.partial | length }}{% endif %}</dd>
{% for name, variant in evidence.variants.items() %}<dt>variant {{ name }}</dt><dd>{{ variant.text }}</dd>{% endfor %}
</dl>
{{ draw("federation") }}{{ draw("pipeline") }}
</section>"""
SECTION = Section(PAGE, "design", "Design", {"design": design})
