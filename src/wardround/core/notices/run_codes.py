"""Codes of training, and of what happens between hospitals."""

from collections.abc import Mapping

from wardround.core.notices.code import NOTHING, Code, Text, absence, count, info, listed, plural, warning
from wardround.core.notices.notice import Notice

LR_HIGH = "The learning rate (`lr`) may be too high."
WITHHELD = "stay there and count nowhere else"


def _training(meaning: str, remedy: str, what: str) -> Code:
    """Advice follows at once: these are read at the end of a run."""
    return warning(meaning, remedy, lambda n: f"{what.format(**n.counts)}; {remedy[0].lower()}{remedy[1:-1]}")


def _withheld(notice: Notice) -> str:
    few = f"fewer than {count(notice, 'smallest')} patients {notice.details['part']}"
    if notice.details.get("findings"):
        return f"{few} have, or have not, {', '.join(notice.classes)}; its figures of these findings {WITHHELD}"
    if notice.classes:
        return f"{few} of class {', '.join(notice.classes)}; its figures by class {WITHHELD}"
    return f"{few}; its figures {WITHHELD}"


def _reason(what: str) -> Text:
    def text(notice: Notice) -> str:
        peers = [f"{site}: " for site in notice.other_sites]
        return f"{what}: {''.join(peers)}{notice.details['reason']}"

    return text


DIFFERENCES = {  # by the rule of `screening`
    "direction": "in its first rounds they pointed away from them: mean cosine {value:.2f}, where {limit:.2f} or less "
    "is named",
    "length": "they were {value:.2g} times as long as the median of all, where {limit:.0f} times or a {limit:.0f}th is "
    "named",
    "turned": "they turned against its own earlier ones (cosine {value:.2f}, where {limit:.2f} or less is named), and "
    "those of the others did not",
    "copy": "they equal those of {other}, up to a factor: sine of the angle {value:.2g}, where {limit:.2g} or less is "
    "named",
    "echo": "they equal the last change of the shared model, up to a factor (sine of the angle {value:.2g}), and those "
    "of the others do not",
}


def _difference(notice: Notice) -> str:
    other = next(iter(notice.other_sites), "another hospital")
    what = DIFFERENCES[str(notice.details["rule"])].format(**notice.counts, other=other)
    when = f"round {count(notice, 'round')}"
    follows = "; from then on it was left out" if notice.details.get("left_out") else ""
    decision = notice.details.get("decision")
    decided = f"; {notice.details['decided_by']} decided to {decision} it" if decision else ""
    return f"its updates of {notice.arm} differ from the other hospitals': {what} ({when}){follows}{decided}"


def _not_compared(notice: Notice) -> str:
    if notice.details.get("part"):
        return f"updates were not compared: under [privacy.{notice.details['part']}] nobody sees those of one site"
    return (
        f"updates are described and no hospital is named: {count(notice, 'sites')} worked in a round, and it takes "
        f"{count(notice, 'least')}"
    )


RUN_CODES: Mapping[str, Code] = {
    # adversaries
    "idle-adversary": info(
        "A simulated adversary forges updates, and the arm has none: its sites train alone, or their rows are pooled.",
        NOTHING,
        lambda n: (
            f"{listed(n.other_sites)} would forge updates, and nobody sends any: the arm is as without adversaries"
        ),
    ),
    # training
    "diverged": warning(
        "Training diverged: scores are not numbers, and count nowhere.",
        LR_HIGH,
        lambda n: "training diverged; the scores are not numbers and count nowhere",
    ),
    "constant-scores": _training(
        "Scores of all test rows are within 0.001 of each other.",
        "Nothing was learnt; try another learning rate (`lr`).",
        "gives all test rows nearly the same score",
    ),
    "saturated-scores": _training(
        "The test loss after the last round is more than 5 % above that of the constant answer, which gives every row "
        "the shares of the classes among the test rows, and 1 % of the scores or more are within 0.001 of 0 or 1.",
        "The learning rate (`lr`) may be too high, or the rows too few for the model.",
        "has a higher test loss than the same answer for everybody would have, and {share:.0%} of its scores are "
        "nearly 0 or 1",
    ),
    "unfinished-training": _training(
        "The test loss is more than 5 % above that of one answer for everybody, and the training loss is above it too "
        "where it is known: common with a rare outcome and few rounds.",
        "Training may have stopped too early: try more `rounds` or a higher learning rate (`lr`).",
        "has a higher test loss than the same answer for everybody would have, without any extreme score",
    ),
    "overfitted": _training(
        "The test loss is more than 5 % above that of one answer for everybody, although the training loss is below "
        "that.",
        "The model fits the rows it was trained on, and not these: try fewer `rounds` or `weight_decay`, or look at "
        "how the test patients differ.",
        "has a higher test loss than the same answer for everybody would have, although its training loss is lower",
    ),
    "perfect-scores": _training(
        "Nearly every test row with the outcome has a higher score than every one without: an AUC of 0.999 or more on "
        "average over seeds, with 20 such rows or more in all.",
        "Real outcomes hardly allow that: look for a column that is known only because of the outcome.",
        "scores nearly every test row with the outcome above every one without (AUC {auc:.4f})",
    ),
    "rising-loss": _training(
        "The mean training loss of the last tenth of the rounds is more than 5 % above that of the first round.",
        LR_HIGH,
        "has a higher training loss at the end than after the first round",
    ),
    "flat-loss": _training(
        "The training loss fell by less than 0.1 %.",
        "The learning rate (`lr`) may be too low, or the rounds too few.",
        "has hardly changed its training loss",
    ),
    "update-not-finite": warning(
        "A site's updates had numbers that are not finite, and counted for nothing.",
        LR_HIGH,
        lambda n: (
            f"its update of {n.arm} had numbers that are not finite in {plural(count(n, 'rounds'), 'round')}, and "
            "counted for nothing there"
        ),
    ),
    "never-counted": warning(
        "No work of a site counted in an arm: all of it came too late, was too stale, or was not done at the end.",
        "Raise `rounds`, `most_stale` or the deadline, let `late` use such work, or wait for the site: the shared "
        "model has learnt nothing from its patients.",
        lambda n: (
            f"none of its work counted in {n.arm}, so that the shared model has learnt nothing from its patients: "
            + (
                f"{plural(count(n, 'dropped'), 'piece')} of it came too late"
                if n.counts["dropped"]
                else "it was not done"
            )
        ),
    ),
    "update-differs": warning(
        "A site's updates differ from the other hospitals' by a rule of `[screening]`: it may be broken, hostile, or "
        "rightly different. Of honest hospitals as the named generator draws them, one in 20 runs names any.",
        "Ask the hospital: how its outcome is coded, whether a device or an export has changed. Compare the run with "
        "one without it, or under a robust rule, before anything is concluded.",
        _difference,
    ),
    "updates-not-compared": info(
        "`[screening]` names nobody here: updates are hidden, or too few sites work in a round.",
        NOTHING,
        _not_compared,
    ),
    # across hospitals
    "figures-withheld": info(
        "A site, or a class at a site, has too few patients for figures to leave it (`smallest_cell`).",
        NOTHING,
        _withheld,
    ),
    "large-share-of-weight": warning(
        "One site has more than half of all training rows, and so more than half of the weight.",
        "Ask the site to confirm how many rows it has, or choose an algorithm that weights sites alike.",
        lambda n: (
            f"has {n.counts['share']:.0%} of all training rows, so that it alone decides more than half of every "
            "average that is weighted by rows"
        ),
    ),
    "matched-rows": info(
        "How many training rows of the label holder are of patients whom all parties have.",
        NOTHING,
        lambda n: f"all parties have the patients of {count(n):,} of {count(n, 'of'):,} training rows",
    ),
    "site-late": absence(
        "A site did not answer in time, before the first round.",
        "Ask the site whether it was running.",
        lambda n: (
            "did not answer the greeting in time"
            if n.details.get("greeting")
            else "did not answer in time, before the first round"
        ),
    ),
    "region-left": absence(
        "A hospital's region left, and the hospital with it.",
        "Settle it with the region.",
        lambda n: f"its region {n.details['region']} left",
    ),
    "site-revoked": absence("A site's key was revoked.", "Provision the site anew.", lambda n: "its key was revoked"),
    "site-refused": absence(
        "A site refused to take part, by its policy or its approvals.",
        "Settle it with the site.",
        _reason("refused"),
    ),
    "site-failed": absence(
        "A site could not do what it was asked.",
        "Settle it with the site; its own screen says more.",
        _reason("failed"),
    ),
    "site-data-unusable": absence(
        "A site's rows cannot be read or used.",
        "The site's own screen says why.",
        lambda n: "failed: its rows cannot be used as they are; its own screen says why",
    ),
    "site-fails-check": absence(
        "A site's rows fail a check.",
        "The site's own screen says how.",
        lambda n: f"failed: its rows fail the check {n.details['check']}; its own screen says how",
    ),
    "site-answer-unusable": absence(
        "A site sent an answer that cannot be used.",
        "Install the same version of wardround everywhere.",
        lambda n: str(n.details.get("problem") or f"sent an answer that cannot be used: {n.details['reason']}"),
    ),
    "site-disagrees": absence(
        "A site's data do not fit with those of most other sites.",
        "Change the site's file as its remedy says.",
        lambda n: str(n.details["reason"]),
    ),
    "site-away": absence(
        "A site was away when models were evaluated.",
        "No figure has its rows; evaluate again when it is there.",
        lambda n: "was away when models were evaluated, so that no figure has its rows",
    ),
}
