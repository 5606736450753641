"""The cases of a reading list: what readers see of a row, what the model says of it, and what is so.

Rows are read and predicted by the functions of `wardround predict`, so that a reader sees the score that a clinician
would. A case has a code by chance. Nothing but the columns that the model takes is shown: neither the row's place or
file name, nor any other column.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion

from wardround.bundles.bundle import Bundle
from wardround.bundles.explain.explained_images import Lines, attributed, image_scorer, plain_of, takes_images
from wardround.bundles.explain.step import explain_step
from wardround.bundles.predict.pipeline import Predicting, PredictOptions, known
from wardround.bundles.predict.predict import file_blocks
from wardround.bundles.predict.scoring import STEPS, predict_block
from wardround.core import seeds
from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.threads import torch_threads
from wardround.explain.explanation import method_for
from wardround.explain.localisation import shown
from wardround.tasks.answer import PRESENCE

REASONS = 5  # columns that contributed most
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without those that look like others
MOST_CASES = 1000
ORANGE, OPACITY = (230, 159, 0), 0.6


@dataclass(frozen=True)
class Question:
    """What a reader is asked of each case."""

    about: str  # the finding; empty where a case has one question
    answers: tuple[str, ...]
    score: int  # which of the scores says how likely the last answer is; -1: each answer has one


@dataclass(frozen=True, eq=False)
class Case:
    row: int  # in the file, counted from 0
    shown: tuple[tuple[str, str], ...]  # columns and their values
    image: str  # a PNG in base64; empty where there is none
    scores: tuple[float, ...]  # of each answer
    predicted: int  # the number of an answer
    reasons: tuple[tuple[str, float], ...]  # columns, and what each adds to the score before the inverse link
    truth: int | None
    prepared: np.ndarray | None = None  # an image as the model takes it
    heat: str = ""  # the picture, with what raises the score; a PNG in base64


def question_of(bundle: Bundle, finding: str | None) -> Question:
    answer = bundle.answer
    if answer.bounded_by == "residuals":
        raise StudyError("BUNDLE", "predicts a number, and readers are asked for a class or a finding", "Take another.")
    if not bundle.task.findings:
        if finding is not None:
            raise StudyError("--finding", "the bundle predicts classes, and no findings", "Leave it out.")
        return Question("", tuple(answer.classes), 0 if len(answer.classes) == 2 else -1)
    names = bundle.task.findings
    if finding is None and len(names) > 1:
        raise StudyError(
            "--finding", "missing: a list asks one question of each case", f"Findings: {', '.join(names)}."
        )
    if finding is not None and finding not in names:
        raise StudyError("--finding", "the bundle has no such finding", suggest(finding, names, "Findings"))
    chosen = names[0] if finding is None else finding
    return Question(chosen, PRESENCE, names.index(chosen))


def read_cases(
    bundle: Bundle, data: str | Path, question: Question, truth: str | None, reasons: bool, pixels: int | None
) -> list[Case]:
    """Every row of the file that has a prediction. `pixels` is the size of pictures; None: that of the model."""
    of_images = bundle.inputs.images is not None
    if reasons and of_images and not takes_images(bundle):
        problem = "reasons are of columns or of images, and the rows of this bundle have both"
        raise StudyError("--conditions", problem, "Write --conditions alone,score.")
    keep = () if truth is None else (truth,)
    steps = (*STEPS, explain_step(REASONS)) if reasons and not of_images else STEPS
    options = PredictOptions()
    with file_blocks(bundle, data, keep, options) as source, torch_threads(1):
        blocks = [predict_block(bundle, read(), options, steps) for read in source.blocks]
    pictures = _pictures(bundle, data, keep, pixels) if bundle.inputs.images is not None else []
    cases: list[Case] = []
    first = 0
    for rows in blocks:
        if rows.unreadable:
            problem = f"{len(rows.unreadable)} images cannot be read"
            raise DataError(str(data), problem, "Take them away, or fix them; `wardround predict` names them.")
        cases += _cases_of(rows, question, truth, first, pictures[first : first + len(rows)])
        first += len(rows)
    if not cases:
        raise DataError(str(data), "no row of it has a prediction", "`wardround predict` has a reason for each row.")
    return cases


def _pictures(bundle: Bundle, data: str | Path, keep: Sequence[str], pixels: int | None) -> list[np.ndarray]:
    """Pictures of the same rows, as large as readers are to see them."""
    images = bundle.inputs.images
    assert images is not None  # noqa: S101 - only asked for images
    size = images.shape[1] if pixels is None else pixels
    larger = replace(bundle, inputs=replace(bundle.inputs, images=replace(images, shape=(1, size, size), clahe=False)))
    with file_blocks(larger, data, keep, PredictOptions()) as source:
        read = [block() for block in source.blocks]
    return [image[0] for block in read if block.images is not None for image in block.images]


def _cases_of(
    rows: Predicting, question: Question, truth: str | None, first: int, pictures: Sequence[np.ndarray]
) -> list[Case]:
    scored, predicted = known(rows.scored), known(rows.decided).predicted
    names = [column.own_name for column in rows.bundle.recipe.columns if column.own_name in rows.block.columns]
    cells = {name: rows.block.columns[name].to_pylist() for name in names}
    truths = [None] * len(rows) if truth is None else _truths(rows, question, truth)
    return [
        Case(
            first + row,
            tuple((name, _text(cells[name][row])) for name in names),
            _png(pictures[row]) if pictures else "",
            _scores(question, scored.score[row]),
            _predicted(question, predicted[row]),
            _reasons(rows.columns, row),
            truths[row],
            known(rows.prepared).x[row] if pictures else None,
        )
        for row in range(len(rows))
        if not scored.unscored[row]
    ]


def _scores(question: Question, score: np.ndarray) -> tuple[float, ...]:
    if question.score < 0:
        return tuple(score.tolist())
    last = float(np.ravel(score)[question.score])
    return (1 - last, last)


def _predicted(question: Question, predicted: np.ndarray) -> int:
    return int(np.ravel(predicted)[question.score if question.about else 0])


def _reasons(columns: Mapping[str, pa.Array], row: int) -> tuple[tuple[str, float], ...]:
    found = []
    for place in range(1, REASONS + 1):
        name = columns.get(f"reason_{place}")
        if name is not None and name[row].as_py() is not None:
            found.append((str(name[row].as_py()), float(columns[f"contribution_{place}"][row].as_py())))
    return tuple(found)


def _truths(rows: Predicting, question: Question, column: str) -> list[int | None]:
    words = {word: question.answers.index(name) for word, name in rows.bundle.vocabulary.items() if not question.about}
    words |= {name.casefold(): number for number, name in enumerate(question.answers)}
    if len(question.answers) == 2:
        words |= {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
    truths: list[int | None] = []
    for row, cell in enumerate(rows.block.columns[column].to_pylist()):
        word = "" if cell is None else str(cell).strip().casefold()
        if word not in words:
            problem = f"what is in {column!r} is none of the answers"
            raise DataError(rows.block.place(row), problem, f"Expected: {', '.join(question.answers)}; or 0 and 1.")
        truths.append(words[word])
    return truths


def _text(value: object) -> str:
    if value is None or value != value or str(value).strip() == "":
        return "not recorded"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.removesuffix(".0")


def _png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def with_heat(bundle: Bundle, question: Question, cases: Sequence[Case]) -> list[Case]:
    """Images with what raises the score for the last of two answers, or for the answer that the model gives, by the
    method that `wardround explain` takes."""
    x = np.stack([case.prepared for case in cases if case.prepared is not None])
    scorer, (plain, _) = image_scorer(bundle), plain_of(x, bundle.dtype, given=False)
    _, method = method_for(scorer, len(plain), images=True)
    number = [max(question.score, 0) if len(question.answers) == 2 else case.predicted for case in cases]
    lines = Lines(np.arange(len(cases)), np.array(number), np.ones(len(cases), dtype=bool))
    with torch_threads(1):
        values, _ = attributed(method, scorer, torch.from_numpy(x).to(bundle.dtype), lines, plain)
    return [
        replace(case, prepared=None, heat=overlay(case.image, heat))
        for case, heat in zip(cases, shown(values), strict=True)
    ]


def overlay(picture: str, heat: np.ndarray) -> str:
    """Orange where the score is raised most, within a white line at half of it, which shows in grey too."""
    grey = Image.open(io.BytesIO(base64.b64decode(picture)))
    top = float(heat.max())
    share = Image.fromarray((heat / top if top > 0 else heat).astype(np.float32), mode="F")
    large = np.asarray(share.resize(grey.size, Image.Resampling.BILINEAR))[..., None]
    pixels = np.repeat(np.asarray(grey, dtype=np.float32)[..., None], 3, axis=2)
    mixed = pixels * (1 - OPACITY * large) + OPACITY * large * np.array(ORANGE, dtype=np.float32)
    inside = large[..., 0] >= 0.5
    line = max(1, grey.width // 256)
    mixed[inside & ~binary_erosion(inside, iterations=line)] = 255
    mixed[binary_dilation(inside, iterations=line) & ~inside] = 0  # beside it a black one, for what is bright
    return _png(mixed.round().clip(0, 255).astype(np.uint8))


def drawn_cases(cases: Sequence[Case], count: int | None, seed: int) -> list[Case]:
    """So many, drawn by chance with the share of each outcome kept; all where no number is given."""
    if count is None and len(cases) <= MOST_CASES:
        return list(cases)
    if count is None:
        problem = f"{len(cases):,} rows make a longer list than anybody reads ({MOST_CASES:,} are allowed)"
        raise StudyError("--cases", problem, "Say how many are drawn, such as --cases 60.")
    if not 1 <= count <= min(len(cases), MOST_CASES):
        problem = f"{count} cases cannot be drawn of {len(cases):,} rows with a prediction"
        raise StudyError("--cases", problem, f"Write a number between 1 and {min(len(cases), MOST_CASES)}.")
    rng = seeds.generator(seed, "cases of a list")
    strata = strata_of(cases)
    order = np.concatenate([rng.permutation(np.flatnonzero(strata == stratum)) for stratum in np.unique(strata)])
    # every so-many-th of the rows in order of outcome: each outcome has its share, give or take a row
    chosen = order[np.floor((np.arange(count) + rng.random()) * len(cases) / count).astype(np.int64)]
    return [cases[place] for place in np.sort(chosen)]


def strata_of(cases: Sequence[Case]) -> np.ndarray:
    """By truth where it is known, and by what the model predicts."""
    return np.array([100 * (-1 if case.truth is None else case.truth) + case.predicted for case in cases])


def codes(count: int, seed: int) -> list[str]:
    """One for each case, by chance, so that a code says nothing of the place in the file."""
    rng, found = seeds.generator(seed, "codes of cases"), dict[str, None]()
    while len(found) < count:
        found["".join(CODE_LETTERS[number] for number in rng.integers(len(CODE_LETTERS), size=4))] = None
    return list(found)
