"""The words of a target and the classes that they mean, so that a class is one thing at every hospital.

A hospital may say what its own words mean (`labels`). Otherwise its words must be the study's classes, or one of the
pairs of words that are known. What is not known is an error, never a guess: a target whose meaning is turned round at
one hospital would train without a sound.

Values are never shown. An error names a word only if the study declares it or it is one of the known pairs; of any
other it tells the place, because it may be a patient's name in a wrong column.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wardround.core.errors import DataError, StudyError, suggest
from wardround.data.sources.csv.column_types import FEW_LEVELS, one_spelling, spelling, sum_present
from wardround.data.sources.csv.text_table import MISSING_WORDS, Cells, to_number
from wardround.data.sources.csv.typos import MOST_NUMBERS, lines_of, misspelling, rows_of_words

LONGEST_CLASS_NAME = 40
# (negative, positive): a word stands in one pair only, so that it has one meaning
PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("0", "1"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("absent", "present"),
    ("alive", "dead"),
    ("survived", "died"),
    ("healthy", "sick"),
    ("normal", "abnormal"),
    ("benign", "malignant"),
    ("control", "case"),
    ("nein", "ja"),
    ("non", "oui"),
)
MEANINGS = {word: (pair, label) for pair in PAIRS for label, word in enumerate(pair)}

Order = list[tuple[str, ...]]  # the words of each class, by class number; the first that occurs names it


@dataclass(frozen=True)
class Wanted:
    """What a study says of its classes."""

    positive: str | None = None
    classes: tuple[str, ...] | None = None
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by hospital: from its word to the class

    def check(self) -> None:
        """As far as that is possible before any file is read."""
        if self.classes is not None:
            self._check_classes(self.classes)
        for site, labels in self.labels.items():
            self._check_labels(labels, f"data: labels: {site}")

    def _check_classes(self, classes: tuple[str, ...]) -> None:
        if len(classes) < 2 or len(set(map(one_word, classes))) < len(classes):
            problem = "must list two or more different classes"
            raise StudyError("data: classes", problem, "Name each class once; of two, the second is the positive one.")
        if len(classes) > 2 and self.positive is not None:
            problem = f"there are {len(classes)} classes, and none of them is the positive one"
            raise StudyError("data: positive", problem, "Leave `positive` out, or list two `classes`.")
        if len(classes) == 2 and self.positive is not None and one_word(self.positive) != one_word(classes[1]):
            problem = f"{self.positive!r} is not the second of the two `classes`, which is the positive one"
            raise StudyError("data: positive", problem, "Leave `positive` out, and write the positive class second.")

    def _check_labels(self, labels: Mapping[str, str], where: str) -> None:
        if not labels:
            raise StudyError(where, "no word is named", 'Write a line `"word" = "class"` for each word in the file.')
        known = {one_word(name): name for name in self.classes or labels.values()}
        meanings: dict[str, str] = {}
        for word, name in labels.items():
            if word.strip().lower() in MISSING_WORDS:
                problem = f"{word!r} counts as a gap when a file is read, so it can be no class"
                raise StudyError(where, problem, "Write another word for it in the file.")
            if one_word(name) not in known:
                problem = f"{name!r} is not one of the study's classes"
                raise StudyError(f"{where}: {word}", problem, suggest(name, known.values(), "Classes"))
            if meanings.setdefault(one_word(word), one_word(name)) != one_word(name):
                raise StudyError(f"{where}: {word}", "this word is given two classes", "Name it once.")


@dataclass(frozen=True)
class Target:
    classes: tuple[str, ...]  # for two, the second is the positive one
    numbers: dict[str, np.ndarray]  # by hospital: the class of each row
    vocabulary: dict[str, dict[str, str]]  # by hospital: word in lower case -> class
    notes: list[str]


def one_word(text: str) -> str:
    """How words are compared: without case, and with one spelling per number."""
    return spelling(text.strip(), to_number(text)).casefold()


def read_target(names: Mapping[str, str], sites: Mapping[str, Cells], wanted: Wanted) -> Target:
    """`names` says what each hospital calls its target."""
    where = _place(names)
    words = {site: [word.casefold() for word in one_spelling(cells)] for site, cells in sites.items()}
    spellings: dict[str, str] = {}
    for site, cells in sites.items():
        for word, level in zip(words[site], cells.levels, strict=True):
            spellings.setdefault(word, level if level.casefold() == word else word)
    _refuse_measurements_and_free_text(where, sites, spellings)
    told = _Told(sites, words, wanted)
    meant = {site: _meanings(site, words[site], told, wanted) for site in sites}
    spellings = {
        **{one_word(name): name.strip() for labels in wanted.labels.values() for name in labels.values()},
        **{word: spellings[word] for site in sites if site not in wanted.labels for word in words[site]},
    }
    order, notes = _order(where, meant, spellings, wanted, told)
    number = {word: label for label, group in enumerate(order) for word in group}
    classes = tuple(next((spellings[word] for word in group if word in spellings), group[0]) for group in order)
    if wanted.classes is not None:
        classes = tuple(name.strip() for name in wanted.classes)
    return Target(
        classes,
        {s: c.spread([number[meant[s][w]] for w in words[s]], None).astype(np.int64) for s, c in sites.items()},
        {site: {word: classes[number[name]] for word, name in found.items()} for site, found in meant.items()},
        notes,
    )


def _place(names: Mapping[str, str]) -> str:
    if len(set(names.values())) == 1:
        return f"target {next(iter(names.values()))!r}"
    return "target (" + ", ".join(f"{name!r} at {site!r}" for site, name in names.items()) + ")"


@dataclass(frozen=True)
class _Told:
    """How errors name the words of a target."""

    sites: Mapping[str, Cells]
    words: Mapping[str, Sequence[str]]  # by hospital: that of each level
    wanted: Wanted

    def listed(self, words: Iterable[str]) -> str:
        """Those that are the study's words or everybody's, and the number and place of the others."""
        given = [*(self.wanted.classes or ()), self.wanted.positive or ""]
        given += [text for labels in self.wanted.labels.values() for pair in labels.items() for text in pair]
        public = {**{word: word for word in MEANINGS}, **{one_word(text): text.strip() for text in given}}
        words = set(words)
        told = sorted(repr(public[word]) for word in words if word in public)
        others = {word for word in words if word not in public}
        if others:
            told.append(f"{len(others)} that the study does not declare ({self._place(others)})")
        return ", ".join(told)

    def _place(self, words: set[str]) -> str:
        for site, cells in self.sites.items():
            chosen = np.array([word in words for word in self.words[site]], dtype=bool)
            if chosen.any():
                return f"the first at {site!r} in line {cells.count_and_first_line(chosen)[1]}"
        return "in no file"


def _meanings(site: str, words: Sequence[str], told: _Told, wanted: Wanted) -> dict[str, str]:
    """Of every word that a hospital has or declares, the word that the study has for it."""
    labels = wanted.labels.get(site)
    if labels is None:
        return {word: word for word in words}
    meant = {one_word(word): one_word(name) for word, name in labels.items()}
    unknown = [word for word in words if word not in meant]
    if unknown:
        here = _Told({site: told.sites[site]}, {site: words}, wanted)
        problem = f"words in its target column that `labels` does not name: {here.listed(unknown)}"
        known = _listed(dict.fromkeys(wanted.classes or labels.values()))
        raise DataError(f"hospital {site!r}", problem, f"Add a line for each under `labels`. The classes are: {known}.")
    return meant


def _refuse_measurements_and_free_text(where: str, sites: Mapping[str, Cells], spellings: Mapping[str, str]) -> None:
    levels = np.concatenate([cells.numbers for cells in sites.values()])
    numbers = levels[~np.isnan(levels)]
    present, distinct = sum_present(sites), len(spellings)
    remedy = "Choose a column with a few classes, or add one, such as a yes/no column made with a threshold."
    many_numbers = distinct > FEW_LEVELS and 2 * len(numbers) > len(levels)
    if many_numbers or np.isinf(numbers).any() or np.any(numbers != np.round(numbers)):
        raise DataError(where, f"looks like a measurement, not a class ({distinct} different values)", remedy)
    # A name or a remark must not pass for a class, because class names are shown.
    repeated_too_rarely = len(spellings.keys() - MEANINGS.keys()) > 2 and 2 * distinct > present
    if distinct > FEW_LEVELS or repeated_too_rarely or max(map(len, spellings)) > LONGEST_CLASS_NAME:
        raise DataError(where, f"looks like free text, not a class ({distinct} different values)", remedy)


def _order(
    where: str, meant: Mapping[str, Mapping[str, str]], spellings: Mapping[str, str], wanted: Wanted, told: _Told
) -> tuple[Order, list[str]]:
    words = {site: list(dict.fromkeys(found.values())) for site, found in meant.items()}
    positive = None if wanted.positive is None else one_word(wanted.positive)
    if wanted.classes is not None:
        return _as_listed(where, words, spellings, wanted.classes, told), []
    if all(word in MEANINGS for word in spellings):
        return _known_pairs(where, words, spellings, positive, told)
    if positive is not None:
        return _one_pair(where, spellings, positive, told), []
    return _several(where, words, spellings, told), []


def _as_listed(
    where: str,
    words: Mapping[str, Sequence[str]],
    spellings: Mapping[str, str],
    listed: Sequence[str],
    told: _Told,
) -> Order:
    order: Order = [(one_word(name),) for name in listed]
    unknown = spellings.keys() - {word for group in order for word in group}
    if not unknown:
        return order
    strange = next(site for site, found in words.items() if unknown & set(found))
    problem = (
        f"{len(unknown)} classes are not in the study's list: {told.listed(unknown)}. "
        f"The study has {_listed(listed)}; {_said(words, told)}"
    )
    remedy = (
        f'Say what they mean, with a line `"word" = "class"` for each under [data.labels.{strange}] (in a site file: '
        "[data.labels]); or correct the files, or `classes`."
    )
    raise DataError(where, problem, remedy)


def _known_pairs(
    where: str, words: Mapping[str, Sequence[str]], spellings: Mapping[str, str], wanted: str | None, told: _Told
) -> tuple[Order, list[str]]:
    used = {site: list(dict.fromkeys(MEANINGS[word][0] for word in found)) for site, found in words.items()}
    pairs = list(dict.fromkeys(pair for site in used for pair in used[site]))
    if wanted is not None and (wanted not in MEANINGS or MEANINGS[wanted][0] not in pairs):
        raise _no_such_class(where, told.listed(spellings))
    # The classes are named in the words of `positive`, or else of a pair of which both words occur.
    pairs.sort(key=lambda pair: (wanted not in pair, not all(word in spellings for word in pair)))
    order: Order = [tuple(pair[label] for pair in pairs) for label in (0, 1)]
    notes = []
    if len(pairs) > 1:
        said = ", ".join(f"{' and '.join(f'{b}/{a}' for a, b in used[site])} at {site!r}" for site in used)
        notes.append(f"{where}: {said}. These were taken to mean the same; please confirm that they do.")
    return order[::-1] if wanted in order[0] else order, notes


def _one_pair(where: str, spellings: Mapping[str, str], wanted: str, told: _Told) -> Order:
    if wanted not in spellings:
        raise _no_such_class(where, told.listed(spellings))
    others = [word for word in spellings if word != wanted]
    if len(others) > 1:
        raise DataError(
            where,
            f"`positive` is given, but there are {len(others)} other classes: {told.listed(others)}",
            "Write one word for all rows that are not positive, or say under `labels` what each hospital's words mean; "
            "for three or more classes, leave `positive` out.",
        )
    return [(others[0] if others else f"not {spellings[wanted]}",), (wanted,)]


def _several(where: str, words: Mapping[str, Sequence[str]], spellings: Mapping[str, str], told: _Told) -> Order:
    if len(spellings) < 3:
        problem = f"it is not known which class is the positive one: {told.listed(spellings)}"
        raise DataError(where, problem, 'Write `positive = "..."` with one of the words in this column.')
    if not any(set(found) == set(spellings) for found in words.values()):
        problem = (
            "the labels differ between the hospitals, and none has them all, so they may differ in meaning: "
            f"{_said(words, told)}"
        )
        remedy = (
            "Agree on one word for each class, or say under `labels` what each hospital's words mean; "
            "if they mean the same everywhere, list them: `classes = [...]`."
        )
        raise DataError(where, problem, remedy)
    numeric = all(re.fullmatch("-?[0-9]+", word) for word in spellings)
    if numeric and len(spellings) > MOST_NUMBERS:
        raise _many_numbers(where, len(spellings))
    _refuse_misspellings(where, told)
    return [(word,) for word in (sorted(spellings, key=int) if numeric else sorted(spellings))]


def _many_numbers(where: str, distinct: int) -> DataError:
    problem = (
        f"{distinct} different numbers would be {distinct} classes without an order: it looks like a count or a score"
    )
    remedy = (
        "Make a column of two classes with a threshold, or join the numbers: [data.labels.HOSPITAL] with "
        '`"0" = "none"`, `"1" = "some"` and so on for each. If they are names of classes: `classes = ["1", "2", ...]`.'
    )
    return DataError(where, problem, remedy)


def _refuse_misspellings(where: str, told: _Told) -> None:
    """Of words that nobody declares: at a hospital with `labels`, all are declared."""
    undeclared = {site: cells for site, cells in told.sites.items() if site not in told.wanted.labels}
    counts = rows_of_words(undeclared, told.words)
    found = misspelling(counts)
    if found is None:
        return
    meant = repr(found.meant) if found.meant in MEANINGS else f"another word of {found.rows_meant} rows"
    how = "in accents, spaces or signs" if found.same_letters else "by one letter"
    first = next(site for site in undeclared if found.word in told.words[site])
    lines = lines_of(found.word, undeclared, told.words)
    problem = f"a word of {found.rows} of {sum(counts.values())} rows differs from {meant} {how} alone ({lines})"
    remedy = (
        f"If it is misspelt, correct the file, or say what each word means: [data.labels.{first}] with a line "
        '`"word" = "class"` for each. If it is a class of its own, list all of them: `classes = [...]`.'
    )
    raise DataError(where, problem, remedy)


def _no_such_class(where: str, known: str) -> DataError:
    return DataError(where, "`positive` is not one of the classes", f"The classes are: {known}.")


def _said(words: Mapping[str, Sequence[str]], told: _Told) -> str:
    return "; ".join(
        f"{site!r} has {_Told({site: told.sites[site]}, {site: told.words[site]}, told.wanted).listed(found)}"
        for site, found in words.items()
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(repr(name) for name in names))
