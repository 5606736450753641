"""What uncertainty costs, and whether it means something on real radiographs.

`python -m benchmarks.uncertainty cost` times 30 passes with dropout against one prediction, for each kind of network.

`python -m benchmarks.uncertainty images FILE.npz [SEEDS]` trains the NIH study's four sites together (FedAvg, a small
network with dropout, 28 pixels) and prints what referral, calibration and prediction sets do to held-out patients, and
how well each figure tells errors from hits and strange images from chest radiographs. Several seeds give an ensemble.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.work import FASHION

PASSES = 30
NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    "cnn": ({"dropout": 0.2}, (1, 64, 64), 256),
    "residual": ({"dropout": 0.2}, (1, 64, 64), 256),
    "mlp": ({"dropout": 0.2}, (13,), 4096),
    "adapter": ({"dropout": 0.2}, (13,), 4096),
}
STRANGE = 2000  # images of each kind
REFERRED = 0.2


# Cost


def cost(repeats: int = 9) -> dict[str, dict[str, float]]:
    """Milliseconds for 1,000 rows: one prediction, and all passes. They take turns, because others may be at work."""
    from wardround.core import seeds
    from wardround.models import MODELS, Shape
    from wardround.tasks import class_task, findings_task
    from wardround.uncertainty.passes import mc_dropout

    costs = {}
    for name, (settings, inputs, rows) in NETWORKS.items():
        images = len(inputs) == 3
        model = MODELS[name](**settings)(Shape(inputs, findings_task(14) if images else class_task(2)))
        params, buffers = model.init(0)
        x = torch.from_numpy(np.random.default_rng(0).normal(size=(rows, *inputs)).astype(np.float32))

        def once(model: Any = model, params: Any = params, buffers: Any = buffers, x: torch.Tensor = x) -> None:
            with torch.no_grad():
                model.logits(params, buffers, x, None)

        def passes(model: Any = model, params: Any = params, buffers: Any = buffers, x: torch.Tensor = x) -> None:
            mc_dropout(model, params, buffers, x, PASSES, seeds.generator(0, "mc dropout"))

        times: dict[str, list[float]] = {"once": [], "passes": []}
        for _ in range(repeats + 1):
            for way, work in (("once", once), ("passes", passes)):
                began = time.perf_counter()
                work()
                times[way].append(time.perf_counter() - began)
        costs[name] = {way: 1e6 * statistics.median(each[1:]) / rows for way, each in times.items()}
    return costs


# Real images


def trained(path: Path, seeds: int, rounds: int, folder: Path) -> tuple[Any, list[Any], Any]:
    """The first seed's trial, the weights that each seed ends with, and the moments of the first seed's late models."""
    import wardround
    from wardround.runs.finished_run import open_run, saved_run
    from wardround.training.rounds import site_model

    study = {
        "name": "uncertainty",
        "data": {
            "source": "chest-xray",
            "path": str(path.resolve()),
            "size": 28,
            "scale": "image",
            "cache": str(folder / "cache"),
        },
        "sites": {"partition": "specialty", "count": 4, "richness": 0.7},
        "model": {"kind": "cnn", "channels": [32, 64], "hidden": 256, "kernel": 3, "norm": "group", "dropout": 0.4},
        "training": {
            "rounds": rounds,
            "batch_size": 32,
            "lr": 0.05,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "lr_decay": {"factor": 0.02 ** (1 / rounds), "every": 1},
            "augment": {"flip": "horizontal", "rotate": 5, "crop": 0.1},
        },
        # seeds that also changed the split would train on each other's test rows
        "evaluation": {
            "split": "given",
            "validation_share": 0.1,
            "every": 0,
            "seeds": {"first": 42, "count": seeds},
            "vary": ["batches", "init"],
        },
        "uncertainty": {"method": "swag", "passes": 2},  # so that late models are collected
        "arms": [{"algorithm": "fedavg"}],
    }
    run = wardround.run_study(study, folder / "runs")
    opened, plan = open_run(run.folder, ("", ""))
    arm = plan.study.arms[0]
    trials = [plan.trial(arm, seed) for seed in plan.study.evaluation.seeds]
    runs = [saved_run(trial, opened.load_model(arm.name, trial.seed)) for trial in trials]
    weights = [site_model(trial, own, 0) for trial, own in zip(trials, runs, strict=True)]
    return trials[0], weights, runs[0].server


def strange_images(chests: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is no upright chest radiograph, scaled image by image as these are."""
    from wardround.uncertainty.shifted_images import drawn_limbs

    some = chests[:STRANGE]
    rng = np.random.default_rng(0)
    pictures = {
        "noise": as_scaled(rng.integers(0, 256, (STRANGE, 1, 28, 28), dtype=np.uint8)),
        "inverted": -some,
        "upside down": some.flip(2),
        "lying": some.rot90(1, (2, 3)),
        "limb": as_scaled(255 * drawn_limbs(STRANGE, 28, 28, rng)[:, None]),
    }
    if FASHION.is_dir():
        import gzip

        content = gzip.decompress((FASHION / "t10k-images-idx3-ubyte.gz").read_bytes())
        clothes = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:STRANGE]
        pictures["clothing"] = as_scaled(clothes)
    return pictures


def as_scaled(images: np.ndarray) -> torch.Tensor:
    pixels = images.astype(np.float32) / 255
    centre, spread = pixels.mean((1, 2, 3), keepdims=True), pixels.std((1, 2, 3), keepdims=True)
    return torch.from_numpy((pixels - centre) / np.maximum(spread, 1e-6))


def images(path: Path, seeds: int = 3, rounds: int = 8) -> dict[str, Any]:
    from wardround.core.seeds import generator
    from wardround.uncertainty.laplace import choose_prior, fit_laplace, laplace_passes
    from wardround.uncertainty.passes import mc_dropout
    from wardround.uncertainty.swag import choose_scale, fit_swag, swag_passes

    with tempfile.TemporaryDirectory() as folder:
        trial, weights, server = trained(path, seeds, rounds, Path(folder))
        sides = {
            side: [
                (*getattr(site, side).everything(torch.float32), getattr(site, side).people) for site in trial.scored
            ]
            for side in ("train", "validation", "test")
        }
    model, (params, buffers) = trial.model, weights[0]
    train = [torch.cat(tensors) for tensors in zip(*sides["train"], strict=True)]
    validation = [torch.cat(tensors) for tensors in zip(*sides["validation"], strict=True)]
    fitted = fit_laplace(model, params, buffers, train[0], train[1])
    fitted = choose_prior(fitted, model, params, buffers, validation[0], validation[1])
    around = choose_scale(
        fit_swag(server, params), model, buffers, [(validation[0], validation[1])], lambda: generator(42, "scale")
    )
    print(f"SWAG: {int(server['swag']['collected'])} models, scale {around.scale:g}; Laplace: prior {fitted.prior:g}")
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "dropout": lambda x: mc_dropout(model, params, buffers, x, PASSES, generator(42, "mc dropout")),
        "laplace": lambda x: laplace_passes(fitted, model, params, buffers, x, PASSES, generator(42, "laplace")),
        "swag": lambda x: swag_passes(around, model, buffers, x, PASSES, generator(42, "swag")),
    }
    if seeds > 1:
        ways["ensemble"] = lambda x: torch.stack([model.logits(*member, x, None)[0] for member in weights])
    return {name: described(model, way, sides) for name, way in ways.items()}


def described(model: Any, way: Callable[[torch.Tensor], torch.Tensor], sides: dict[str, Any]) -> dict[str, Any]:
    from wardround.evaluation.thresholds import best_threshold
    from wardround.tasks.class_metrics import auc, multilabel_metrics
    from wardround.uncertainty.decomposition import about_threshold, entropy_parts, score_spread
    from wardround.uncertainty.referral import refer, referral_curves, referral_cut

    task = model.task
    label = {side: torch.cat([y for _, y, _ in parts]).numpy() for side, parts in sides.items()}
    scores = {side: way(torch.cat([x for x, _, _ in sides[side]])) for side in ("validation", "test")}
    p = {side: model.task.predictions(item).double().numpy() for side, item in scores.items()}
    mean = {side: item.mean(axis=0) for side, item in p.items()}
    cut = np.array([best_threshold(y, s) for y, s in zip(label["validation"].T, mean["validation"].T, strict=True)])
    cut = np.where(np.isnan(cut), 0.5, cut)
    doubt = {side: entropy_parts(task, about_threshold(item, cut)).total for side, item in p.items()}

    def figures(rows: np.ndarray) -> dict[str, float]:
        return multilabel_metrics(label["test"][rows], mean["test"][rows], cut)

    curves = referral_curves(task.of_rows(doubt["test"]), figures, ("accuracy", "auc"))
    place = curves["accuracy"].shares.index(REFERRED)
    wrong = (mean["test"] >= cut) != (label["test"] == 1)
    rows = task.of_rows(doubt["test"])
    referred = refer(rows, referral_cut(task.of_rows(doubt["validation"]), REFERRED))
    both = ("validation", "test")
    everybody = np.concatenate([people for side in both for _, _, people in sides[side]])
    all_labels, all_p = (
        np.concatenate([item[side] for side in both], axis=axis) for item, axis in ((label, 0), (p, 1))
    )
    mixed = referred_of_halves(task, all_labels, all_p, everybody)
    spread = task.of_rows(score_spread(task, scores["test"].numpy()))
    parts = entropy_parts(task, p["test"])
    strange: dict[str, dict[str, float]] = {}
    for kind, x in strange_images(torch.cat([x for x, _, _ in sides["test"]])).items():
        theirs = way(x)
        their_parts = entropy_parts(task, task.predictions(theirs).double().numpy())
        pairs = {
            "spread": (task.of_rows(score_spread(task, theirs.numpy())), spread),
            "epistemic": (task.of_rows(their_parts.epistemic), task.of_rows(parts.epistemic)),
            "total": (task.of_rows(their_parts.total), task.of_rows(parts.total)),
        }
        strange[kind] = {
            name: auc(np.arange(len(a) + len(b)) < len(a), np.concatenate([a, b])) for name, (a, b) in pairs.items()
        }
    return {
        "referral": {name: (item.figures[0], item.figures[place], item.area) for name, item in curves.items()},
        "referred": float(referred.mean()),
        "patients mixed": (float(mixed.mean()), float(mixed.std())),
        # of each finding whose calls are both right and wrong
        "errors": float(np.nanmean([auc(wrong[:, f], doubt["test"][:, f]) for f in range(wrong.shape[1])])),
        "doubt": (float(doubt["test"][wrong].mean()), float(doubt["test"][~wrong].mean())),
        "strange": strange,
        "sites": [at_site(model, way, *pair) for pair in zip(sides["validation"], sides["test"], strict=True)],
    }


def referred_of_halves(task: Any, label: np.ndarray, p: np.ndarray, patient: np.ndarray, draws: int = 40) -> np.ndarray:
    """The share referred of one half of the patients, with thresholds and cut from the other, drawn at random."""
    from wardround.evaluation.thresholds import best_threshold
    from wardround.uncertainty.decomposition import about_threshold, entropy_parts
    from wardround.uncertainty.referral import refer, referral_cut

    rng, people = np.random.default_rng(0), np.unique(patient)
    shares = []
    for _ in range(draws):
        ours = np.isin(patient, rng.permutation(people)[: len(people) // 2])
        score = p[:, ours].mean(axis=0)
        cut = np.array([best_threshold(y, s) for y, s in zip(label[ours].T, score.T, strict=True)])
        doubt = task.of_rows(entropy_parts(task, about_threshold(p, np.where(np.isnan(cut), 0.5, cut))).total)
        shares.append(refer(doubt[~ours], referral_cut(doubt[ours], REFERRED)).mean())
    return np.array(shares)


def at_site(model: Any, way: Callable[[torch.Tensor], torch.Tensor], validation: Any, test: Any) -> dict[str, Any]:
    """Fitted on a site's validation rows, looked at on its test rows."""
    from wardround.uncertainty.calibration import ece, error_by_chance, fit_temperature
    from wardround.uncertainty.conformal import coverage, fit_cuts, prediction_sets, set_sizes

    (known, new), (label, truth) = (
        [model.task.predictions(way(x)).double().numpy().mean(axis=0) for x, _, _ in (validation, test)],
        [y.numpy() for _, y, _ in (validation, test)],
    )
    fitted = fit_temperature(model.task, label, known, validation[2])
    plain, by_label = (
        prediction_sets(model.task, fit_cuts(model.task, label, known, each_label=each), new) for each in (False, True)
    )
    ill = np.where(truth == 1, 1, -1)
    everybody = [np.concatenate(pair) for pair in ((label, truth), (known, new), (validation[2], test[2]))]
    mixed = coverage_of_halves(model.task, everybody[0], everybody[1], everybody[2])
    return {
        "rows": len(truth),
        "ece": (ece(model.task, truth, new), ece(model.task, truth, fitted.of(new))),
        "by chance": float(np.mean([error_by_chance(finding_scores) for finding_scores in new.T])),
        "coverage": float(coverage(plain, truth).mean()),
        "patients mixed": (float(mixed.mean()), float(mixed.std())),
        "ece, patients mixed": errors_of_halves(model.task, everybody[0], everybody[1], everybody[2]),
        "coverage by label": float(coverage(by_label, truth).mean()),
        "coverage of the ill": tuple(float(np.nanmean(coverage(sets, ill))) for sets in (plain, by_label)),
        "answers": tuple(float((set_sizes(sets) == 1).mean()) for sets in (plain, by_label)),
    }


def coverage_of_halves(
    task: Any, label: np.ndarray, score: np.ndarray, patient: np.ndarray, draws: int = 200
) -> np.ndarray:
    """Mean over findings, with cuts from one half of the patients, drawn at random, for the other half."""
    from wardround.uncertainty.conformal import coverage, fit_cuts, prediction_sets

    rng, people = np.random.default_rng(0), np.unique(patient)
    coverages = []
    for _ in range(draws):
        ours = np.isin(patient, rng.permutation(people)[: len(people) // 2])
        sets = prediction_sets(task, fit_cuts(task, label[ours], score[ours], each_label=False), score[~ours])
        coverages.append(coverage(sets, label[~ours]).mean())
    return np.array(coverages)


def errors_of_halves(
    task: Any, label: np.ndarray, score: np.ndarray, patient: np.ndarray, draws: int = 40
) -> tuple[float, float, float]:
    """ECE of one half of the patients, what the other half's temperatures change in it, and how often they raise it."""
    from wardround.uncertainty.calibration import ece, fit_temperature

    rng, people = np.random.default_rng(0), np.unique(patient)
    errors = []
    for _ in range(draws):
        ours = np.isin(patient, rng.permutation(people)[: len(people) // 2])
        fitted, others = fit_temperature(task, label[ours], score[ours], patient[ours]), score[~ours]
        before = ece(task, label[~ours], others)
        errors.append((before, ece(task, label[~ours], fitted.of(others)) - before))
    before, change = np.array(errors).T
    return float(before.mean()), float(change.mean()), float((change > 0).mean())


def told(descriptions: dict[str, Any]) -> None:
    for name, description in descriptions.items():
        print(f"\n{name}")
        for metric, (all_rows, remaining, area) in description["referral"].items():
            print(f"  {metric:<9} all {all_rows:.4f}, without the most doubtful fifth {remaining:.4f}, area {area:.4f}")
        mixed, sd = description["patients mixed"]
        print(
            f"  referred of test rows by a cut for {REFERRED:.0%} of validation rows: {description['referred']:.1%} "
            f"(patients mixed: {mixed:.1%}, SD {sd:.1%})"
        )
        errors, hits = description["doubt"]
        print(
            f"  doubt on errors {errors:.3f} bits, on hits {hits:.3f}; AUC of telling them {description['errors']:.3f}"
        )
        for kind, figures in description["strange"].items():
            listed = ", ".join(f"{figure} {value:.3f}" for figure, value in figures.items())
            print(f"  {kind:<12} from chests: {listed}")
        for number, site in enumerate(description["sites"], start=1):
            before, after = site["ece"]
            ill, ill_by_label = site["coverage of the ill"]
            mixed, sd = site["patients mixed"]
            error, change, raised = site["ece, patients mixed"]
            print(
                f"  site {number} ({site['rows']} rows): ECE {before:.4f}, with temperature {after:.4f} "
                f"(by chance {site['by chance']:.4f}; patients mixed: {error:.4f}, changed by {change:+.4f}, raised in "
                f"{raised:.0%} of draws); sets at 90 % hold {site['coverage']:.1%} "
                f"(patients mixed: {mixed:.1%}, SD {sd:.1%}) and {ill:.1%} of the ill, one label in "
                f"{site['answers'][0]:.0%}; for each label {site['coverage by label']:.1%}, {ill_by_label:.1%}, "
                f"{site['answers'][1]:.0%}"
            )


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "images":
        told(images(Path(sys.argv[2]), *(int(number) for number in sys.argv[3:4])))
        return
    if sys.argv[1:] != ["cost"]:
        print(__doc__)
        return
    for name, times in cost().items():
        ratio = times["passes"] / times["once"]
        print(
            f"{name:<9} 1,000 rows: {times['once']:>8.2f} ms once, {times['passes']:>8.2f} ms for {PASSES} passes "
            f"({ratio:.2f} times)"
        )


if __name__ == "__main__":
    main()
